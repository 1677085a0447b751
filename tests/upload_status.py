"""How much of an upload a coordinator holds, asked as a client does that goes on with one."""

from __future__ import annotations

from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import UploadHeader, UploadStatus

__all__ = ["upload_status"]


def upload_status(link: GrpcLink, header: UploadHeader) -> UploadStatus:
    """Return the coordinator's answer."""
    return link._status(header)
