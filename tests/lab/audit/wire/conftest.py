"""Recorded calls that were made up, and a coordinator that audits them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from world.federation import Workspace, made_data, prepare

from fedrec.plan.schema import Plan
from fedrec.wire.recording import Frame, FrameReader, FrameWriter, Kind
from fedrec.wire.v1 import update_pb2
from fedrec_lab.audit.wire.findings import traffic_findings
from fedrec_lab.audit.wire.known import Known
from fedrec_lab.audit.wire.traffic import Traffic

SERVICE = "/fedrec.wire.v1.Coordinator/"
ADMIN = "/fedrec.wire.v1.Admin/"
CLIENTS = ("a" * 64, "b" * 64)
RANDOM = np.random.default_rng(9)


def made(folder: Path) -> Workspace:
    """Return a federation of three clients under bfv that has not begun."""
    plan = Plan.model_validate(
        {
            "algorithm": {"name": "fedmf", "dim": 4},
            "update": {"structure": "dense"},
            # What members decrypt is published as it was added up, and audited as that.
            "protection": {"name": "bfv", "key_holder": "members"},
        }
    )
    return prepare(folder, plan, made_data(), n_clients=3)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Folders that tests only read."""
    return made(tmp_path_factory.mktemp("coordinator"))


class Recording:
    """Calls that are written to a file, and read by an audit."""

    def __init__(self, path: Path, known: Known) -> None:
        self.path = path
        self._writer = FrameWriter(path, max_bytes=1 << 26)
        self._known = known

    def add(
        self,
        call: int,
        method: str,
        message: object,
        kind: Kind = "request",
        service: str = SERVICE,
    ) -> None:
        """Write one message of a call."""
        raw = message if isinstance(message, bytes) else message.SerializeToString()  # type: ignore[attr-defined]
        frame = Frame(call=call, method=service + method, kind=kind, unix_seconds=0.0, message=raw)
        self._writer.append(frame)

    def upload(self, call: int, client: str, blob: bytes, *pieces: slice, epoch: int = 0) -> None:
        """Send a header, and these pieces of a blob."""
        header = update_pb2.UploadHeader(
            client_id=client, round=1, epoch=epoch, length=len(blob), digest=blob[-32:]
        )
        self.add(call, "SubmitUpdate", update_pb2.UploadPart(header=header))
        for piece in pieces:
            chunk = update_pb2.Chunk(offset=piece.start, data=blob[piece])
            self.add(call, "SubmitUpdate", update_pb2.UploadPart(chunk=chunk))

    def traffic(self) -> Traffic:
        """Return what an audit makes of it."""
        self._writer.close()
        traffic = Traffic(self._known)
        traffic.read(FrameReader(self._writer.path))
        return traffic


def problems_of(traffic: Traffic) -> list[str]:
    found = [problem for finding in traffic_findings(traffic) for problem in finding.problems]
    return [*found, *traffic.problems]


def planned(known: Known) -> bytes:
    return RANDOM.bytes(known.protection.chosen.message_bytes)
