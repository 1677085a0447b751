"""What every section of the settings has in common."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

__all__ = ["InWords", "Section"]


@dataclass(frozen=True, slots=True)
class InWords:
    """What a field takes, in words, where its pattern says it in a way that few people read."""

    words: str


class Section(BaseModel):
    """A section that cannot be changed after reading and has no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
