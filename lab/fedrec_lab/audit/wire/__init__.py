"""The audit of the wire: what a coordinator could read of its traffic and its folder.

Nothing is claimed: every field is looked up in one table of what may travel (`declared`), every
stream is put together and tried with all that the coordinator has (`reading`), and what data
owners know is searched for, if they lend it (`truth`). The audit runs where the coordinator ran,
without a key and without torch.
"""

from fedrec_lab.audit.wire.auditing import audit_wire
from fedrec_lab.audit.wire.findings import ClientRow, EpochRow, Finding, WireReport

__all__ = ["ClientRow", "EpochRow", "Finding", "WireReport", "audit_wire"]
