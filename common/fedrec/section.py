"""What every section of the settings has in common."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

Problem = tuple[tuple[str, ...], str]
"""Dotted keys of settings, the one to change first, and a sentence."""


@dataclass(frozen=True, slots=True)
class InWords:
    """What a field takes, in words, where its pattern says it in a way that few people read."""

    words: str


@dataclass(frozen=True, slots=True)
class UsedIf:
    """Beside which other settings of its section a field has a say.

    Of several on one field, one that holds is enough.

    Attributes:
        values: by setting, the values with which it does.
        above_zero: the settings that must be above 0 besides.
    """

    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    above_zero: tuple[str, ...] = ()

    def misses(self, section: Section) -> Iterator[str]:
        """Yield the settings of a section that are not as they have to be."""
        yield from (
            name for name, wanted in self.values.items() if getattr(section, name) not in wanted
        )
        yield from (name for name in self.above_zero if not getattr(section, name) > 0)

    def words(self, path: str = "") -> str:
        """Return the condition, with a path before the name of each setting."""
        parts = [
            f"{path}{name} is {' or '.join(map(json.dumps, wanted))}"
            for name, wanted in self.values.items()
        ]
        return " and ".join([*parts, *(f"{path}{name} is above 0" for name in self.above_zero)])


@dataclass(frozen=True, slots=True)
class Rule:
    """What settings of a section have to be together.

    Attributes:
        names: the settings, the one to change first; without a say that one breaks no rule.
        holds: whether a section keeps to it.
        sentence: what was found, why it is wrong and what would work, where `{path}` is the
            section's dotted name and `{s.dim}` what it says of `dim`.
    """

    names: tuple[str, ...]
    holds: Callable[[Any], bool]
    sentence: str


def at_most(name: str, other: str, why: str, instead: str) -> Rule:
    """Return the rule that a setting is no larger than another one.

    Args:
        why: a clause about a larger one.
        instead: what works besides a smaller one, to go on a sentence that says this.
    """
    return Rule(
        (name, other),
        lambda section: bool(getattr(section, name) <= getattr(section, other)),
        f"{{path}}.{name} is {{s.{name}}}, but {{path}}.{other} is {{s.{other}}}{why}. Set "
        f"{{path}}.{name} = {{s.{other}}} or less, {instead}.",
    )


def at_least(name: str, other: str, why: str, instead: str) -> Rule:
    """Return the rule that a setting is no smaller than another one, unless it is 0."""
    return Rule(
        (name, other),
        lambda section: not 0 < getattr(section, name) < getattr(section, other),
        f"{{path}}.{name} is {{s.{name}}}, but {{path}}.{other} is {{s.{other}}}{why}. Set "
        f"{{path}}.{name} = {{s.{other}}} or more, {instead}.",
    )


def only_if(holds: Callable[[Any], bool], names: tuple[str, ...], why: str) -> Rule:
    """Return the rule that a setting is left as it is where it has no say.

    Args:
        holds: whether the first of the names has one.
        why: a clause that says why not.
    """
    return Rule(
        names,
        lambda section: holds(section) or section.is_default(names[0]),
        f"{{path}}.{names[0]} is set, but {why}. Leave it out.",
    )


def where_used(metadata: list[object], path: str = "") -> str:
    """Return where a field has a say, as a clause; nothing where it always has."""
    found = [item.words(path) for item in metadata if isinstance(item, UsedIf)]
    return f"only where {', or where '.join(found)}" if found else ""


class Section(BaseModel):
    """A section that cannot be changed after reading and has no unknown keys.

    Attributes:
        rules: what its settings have to be together, besides `UsedIf` at each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    rules: ClassVar[tuple[Rule, ...]] = ()

    def problems(self, path: str) -> Iterator[Problem]:
        """Yield what contradicts itself, and settings that are set and have no say.

        Args:
            path: the section's dotted name; tables inside it are looked through as well.
        """
        for rule in self.rules:
            if not self._missed(rule.names[0]) and not rule.holds(self):
                keys = tuple(f"{path}.{name}" for name in rule.names)
                yield keys, rule.sentence.format(path=path, s=self)
        for name, info in type(self).model_fields.items():
            value, missed = getattr(self, name), self._missed(name)
            if isinstance(value, Section):
                yield from value.problems(f"{path}.{name}")
            if not missed or self.is_default(name):
                continue
            others = [f"{path}.{other}" for other in missed]
            yield (
                (f"{path}.{name}", *others),
                f"{path}.{name} is set, but it has a say {where_used(info.metadata, f'{path}.')}. "
                f"Leave it out, or change {' or '.join(others)}.",
            )

    def is_default(self, name: str) -> bool:
        """Return whether a setting is as it is without being set."""
        return bool(getattr(self, name) == type(self).model_fields[name].default)

    def _missed(self, name: str) -> list[str]:
        """Return the settings that take a field's say away; none where it has one."""
        info = type(self).model_fields.get(name.partition(".")[0])
        conditions = [one for one in info.metadata if isinstance(one, UsedIf)] if info else []
        misses = [[*one.misses(self)] for one in conditions]
        return [*dict.fromkeys(name for missed in misses for name in missed)] if all(misses) else []


def as_toml(value: object) -> str:
    """Return a value as a settings file writes it; ``not set`` for None."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, int, float, list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Section | Mapping):
        own_values = value.model_dump() if isinstance(value, Section) else value
        pairs = (f"{key} = {as_toml(own)}" for key, own in own_values.items())
        return "{ " + ", ".join(pairs) + " }"
    return str(value)
