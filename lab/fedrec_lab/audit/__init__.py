"""What the sums that a plan would release say about single users: one audit for each kind of sum.

An audit reads everybody's data, so it runs where the data is, before the federation does. It
looks for users whom one inference, written down with each audit, determines. Others may be
determined by better ones: what an audit finds is a lower bound.
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
"""By the kind of an algorithm's sums, as `About.audit` names it."""


def audit(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    """Return what the sums of a plan over these users would determine.

    Args:
        users: all users whose data meets in the sums.
        n_items: size of the catalogue.
    """
    return AUDITS[about_algorithm(plan).audit](plan, users, n_items)
