"""What every section of the settings has in common."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict


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


def where_used(metadata: list[object], path: str = "") -> str:
    """Return where a field has a say, as a clause; nothing where it always has."""
    found = [item.words(path) for item in metadata if isinstance(item, UsedIf)]
    return f"only where {', or where '.join(found)}" if found else ""


class Section(BaseModel):
    """A section that cannot be changed after reading and has no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def without_use(self, path: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield settings that are set and have no say: the keys involved, and a sentence.

        Args:
            path: the section's dotted name; tables inside it are looked through as well.
        """
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section):
                yield from value.without_use(f"{path}.{name}")
            misses = [[*one.misses(self)] for one in info.metadata if isinstance(one, UsedIf)]
            if not misses or not all(misses) or value == info.default:
                continue
            others = dict.fromkeys(f"{path}.{other}" for missed in misses for other in missed)
            yield (
                (f"{path}.{name}", *others),
                f"{path}.{name} is set, but it has a say {where_used(info.metadata, f'{path}.')}. "
                f"Leave it out, or change {' or '.join(others)}.",
            )


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
