"""The base of all sections of the settings, with their rules."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from fedrec.errors import SettingsError

Problem = tuple[tuple[str, ...], str]
"""Dotted keys of settings, beginning with the one to change, and a sentence."""


@dataclass(frozen=True, slots=True)
class InWords:
    """The allowed values of a field in words, if its pattern is hard to read.

    Attributes:
        default: the default in words, if it depends on other settings.
    """

    words: str = ""
    default: str = ""


@dataclass(frozen=True, slots=True)
class UsedIf:
    """The condition on other settings of its section under which a field has an effect.

    If a field has several, one that holds is enough.

    Attributes:
        values: the values with which the field has an effect, by setting.
        above_zero: the settings that must also be above 0.
    """

    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    above_zero: tuple[str, ...] = ()

    def misses(self, section: Section) -> Iterator[str]:
        """Yield the settings of a section that do not meet the condition."""
        yield from (
            name for name, wanted in self.values.items() if getattr(section, name) not in wanted
        )
        yield from (name for name in self.above_zero if not getattr(section, name) > 0)

    def words(self, path: str = "") -> str:
        """Return the condition as text, with a path before the name of each setting."""
        parts = [
            f"{path}{name} is {' or '.join(map(json.dumps, wanted))}"
            for name, wanted in self.values.items()
        ]
        return " and ".join([*parts, *(f"{path}{name} is above 0" for name in self.above_zero)])


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between settings of a section.

    Attributes:
        names: the settings, beginning with the one to change. If that one has no effect, it breaks
            no rule.
        holds: whether a section follows it.
        sentence: what was found, why it is wrong and a remedy. `{path}` is the section's dotted
            name and `{s.dim}` its value of `dim`.
    """

    names: tuple[str, ...]
    holds: Callable[[Any], bool]
    sentence: str


def at_most(name: str, other: str, why: str, instead: str) -> Rule:
    """Return the rule that a setting is at most as large as another one.

    Args:
        why: a clause about a larger value.
        instead: an alternative to a smaller value, as the end of a sentence.
    """
    return Rule(
        (name, other),
        lambda section: bool(getattr(section, name) <= getattr(section, other)),
        f"{{path}}.{name} is {{s.{name}}}, but {{path}}.{other} is {{s.{other}}}{why}. Set "
        f"{{path}}.{name} = {{s.{other}}} or less, {instead}.",
    )


def at_least(name: str, other: str, why: str, instead: str) -> Rule:
    """Return the rule that a setting is at least as large as another one, or 0."""
    return Rule(
        (name, other),
        lambda section: not 0 < getattr(section, name) < getattr(section, other),
        f"{{path}}.{name} is {{s.{name}}}, but {{path}}.{other} is {{s.{other}}}{why}. Set "
        f"{{path}}.{name} = {{s.{other}}} or more, {instead}.",
    )


def only_if(holds: Callable[[Any], bool], names: tuple[str, ...], why: str) -> Rule:
    """Return the rule that a setting keeps its default if it has no effect.

    Args:
        holds: whether the first of the names has an effect.
        why: a clause with the reason for none.
    """
    return Rule(
        names,
        lambda section: holds(section) or section.is_default(names[0]),
        f"{{path}}.{names[0]} is set, but {why}. Omit it.",
    )


def where_used(metadata: list[object], path: str = "") -> str:
    """Return the condition for a field's effect as a clause, or empty if there is none."""
    found = [item.words(path) for item in metadata if isinstance(item, UsedIf)]
    return f"only if {', or if '.join(found)}" if found else ""


class Section(BaseModel):
    """A frozen section without unknown keys.

    Attributes:
        rules: the rules between its settings, besides `UsedIf` at each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    rules: ClassVar[tuple[Rule, ...]] = ()

    if not TYPE_CHECKING:  # Otherwise mypy would take every assignment for allowed.

        def __setattr__(self, name: str, value: object) -> None:
            """Refuse to change a setting.

            Raises:
                SettingsError: the name is public.
            """
            if not name.startswith("_"):
                raise SettingsError(
                    f"{name} can't be assigned: settings don't change once they are checked.",
                    remedy="Load them with the new value, as in load_settings(..., "
                    'values={"rounds.total": 9}).',
                )
            super().__setattr__(name, value)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Show only values that are not the default ones, also inside sections."""
        shown = (name for name in type(self).model_fields if not self.is_default(name))
        return ((name, getattr(self, name)) for name in shown)

    def problems(self, path: str) -> Iterator[Problem]:
        """Yield contradictions, and settings that are set without effect.

        Args:
            path: the section's dotted name. Tables inside it are checked, too.
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
                f"{path}.{name} is set, but it has an effect "
                f"{where_used(info.metadata, f'{path}.')}. Omit it, or change "
                f"{' or '.join(others)}.",
            )

    def is_default(self, name: str) -> bool:
        """Return whether a setting has its default value."""
        return bool(getattr(self, name) == type(self).model_fields[name].default)

    def _missed(self, name: str) -> list[str]:
        """Return the settings that keep a field from having an effect, or empty if it has one."""
        info = type(self).model_fields.get(name.partition(".")[0])
        conditions = [one for one in info.metadata if isinstance(one, UsedIf)] if info else []
        misses = [[*one.misses(self)] for one in conditions]
        return [*dict.fromkeys(name for missed in misses for name in missed)] if all(misses) else []


def as_toml(value: object) -> str:
    """Return a value in TOML, or ``not set`` for None."""
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
