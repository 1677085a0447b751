"""Audits of released sums: what they reveal about single users, for each kind of sum.

An audit reads all users' data, so it runs where the data is, before the federation starts. It finds
the users that one documented inference determines. Better inferences may determine others, so its
result is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedrec.data.splits import UserSplit
from fedrec.plan.algorithm import about_algorithm
from fedrec.plan.schema import Plan
from fedrec_lab.audit.sketches import audit_sketches
from fedrec_lab.audit.sums import AuditCount, AuditReport, audit_pairs, audit_rows

__all__ = [
    "AUDITS",
    "AuditCount",
    "AuditReport",
    "audit",
    "audit_pairs",
    "audit_rows",
    "audit_sketches",
]

Audit = Callable[[Plan, UserSplit, int], AuditReport]

AUDITS: Mapping[str, Audit] = {
    "rows": audit_rows,
    "pairs": audit_pairs,
    "sketches": audit_sketches,
}
"""The audit for each kind of sum, as `About.audit` names it."""


def audit(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    """Return the facts that a plan's sums over these users would determine.

    Args:
        users: all users whose data is in the sums.
        n_items: size of the catalogue.
    """
    return AUDITS[about_algorithm(plan).audit](plan, users, n_items)
