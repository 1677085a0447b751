"""What the sums that a plan would release say about single users: one audit for each kind of sum.

An audit reads everybody's data, so it runs where the data is, before the federation does. It
looks for users whom one inference, written down with each audit, determines. Others may be
determined by better ones: what an audit finds is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable

from fedrec.audit.pairs import audit_pairs
from fedrec.audit.report import AuditReport, Finding
from fedrec.audit.rows import audit_rows
from fedrec.config.schema import Plan
from fedrec.data.splits import UserSplit

__all__ = ["AUDITS", "AuditReport", "Finding", "audit", "audit_pairs", "audit_rows"]

Audit = Callable[[Plan, UserSplit, int], AuditReport]

AUDITS: dict[str, Audit] = {
    "ease": audit_pairs,
}
"""By algorithm; those that are not named sum rows over the holders of items."""


def audit(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    """Return what the sums of a plan over these users would determine.

    Args:
        users: all users whose data meets in the sums.
        n_items: size of the catalogue.
    """
    return AUDITS.get(plan.algorithm.name, audit_rows)(plan, users, n_items)
