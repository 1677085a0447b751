"""stub."""
from __future__ import annotations
from fedrec.audit.report import AuditReport
from fedrec.config.schema import Plan
from fedrec.data.splits import UserSplit
__all__ = ["audit_sketches"]
def audit_sketches(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    raise NotImplementedError
