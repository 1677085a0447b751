"""The section `data` of a settings file."""

from __future__ import annotations

from pydantic import Field

from fedrec.section import Section

__all__ = ["DataSettings"]


class DataSettings(Section):
    """Where this machine's interactions are."""

    path: str | None = Field(
        default=None,
        description="File with the interactions, or the name of a public data set in the cache: "
        "ml-100k, ml-1m, filmtrust, amazon-video.",
    )
    layout: str | None = Field(
        default=None, description="File layout; found out from the file where it is missing."
    )
    catalogue: str | None = Field(
        default=None, description="The federation's public catalogue of items."
    )
    user_column: str | None = Field(default=None, description="Name of the user column.")
    item_column: str | None = Field(default=None, description="Name of the item column.")
    timestamp_column: str | None = Field(default=None, description="Name of the time column.")
    minimum_interactions: int = Field(
        default=1, ge=1, description="Users with fewer interactions are left out."
    )
    strict: bool = Field(default=False, description="Refuse a file with unreadable rows.")
