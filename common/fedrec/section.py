"""What every section of the settings has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """A section that cannot be changed after reading and has no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
