"""What an audit found."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.ids import UserId


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCount:
    """A number and what it counts.

    Attributes:
        key: stable, for programs.
    """

    key: str
    count: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The users whom released sums determine, as far as one inference goes.

    Attributes:
        released: which sums were looked at.
        inference: how a user was found.
        n_active: items with at least `minimum_item_users` holders.
        determined: the users whose training items among the active ones the sums determine.
        findings: further counts.
        advice: the setting that would change this, and how.
    """

    released: str
    inference: str
    n_users: int
    n_items: int
    n_active: int
    minimum_item_users: int
    determined: tuple[UserId, ...]
    findings: tuple[AuditCount, ...]
    advice: str
