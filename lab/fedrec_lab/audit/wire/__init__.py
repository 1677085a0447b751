"""The audit of the wire: what a coordinator could read of its traffic and its folder.

The audit checks instead of claiming. It looks up every field in one table of permitted fields
(`declared`). It assembles every stream and tries to read it with everything that the coordinator
has (`reading`). It searches for the data owners' data, if they provide it (`truth`). The audit runs
where the coordinator ran, without a key and without torch.
"""

from fedrec_lab.audit.wire.auditing import audit_wire
from fedrec_lab.audit.wire.findings import ClientRow, EpochRow, Finding, WireReport

__all__ = ["ClientRow", "EpochRow", "Finding", "WireReport", "audit_wire"]
