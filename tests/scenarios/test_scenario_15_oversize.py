"""Scenario 15, GZIP-BOMB/OVERSIZE: what is too large is refused before memory is spent on it.

The coordinator is a process of its own, whose largest memory is looked at. There is no compression
of our own on the wire, so that gRPC's is the only one that could be blown up. Chunks that are not
what the header says are in `tests/server/service/test_admission.py`.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from world.bench import Bench, plan_of
from world.children import CoordinatorProcess

from fedrec.identity.certificates import Credentials
from fedrec.identity.identity import Identity
from fedrec.wire.grpc_calls import open_channel
from fedrec_client.connecting import open_link

NEXT_TASK = "/fedrec.wire.v1.Coordinator/NextTask"
BOMB_BYTES = 400 << 20
CONNECTIONS = 2
MOST_GROWTH = 100 << 20


def largest(pid):
    """Return the most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def answer(address, own, data, *, gzip):
    """Send bytes as a request for a task; return what came of it."""
    packed = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
    channel = open_channel(address, own)
    try:
        call: Any = channel.unary_unary(NEXT_TASK)
        with pytest.raises(grpc.RpcError) as caught:
            call(data, timeout=60, compression=packed)
        code: grpc.StatusCode = caught.value.code()
        return code
    finally:
        channel.close()


@pytest.mark.slow
def test_scenario_15_a_bomb_and_a_message_of_five_megabytes(tmp_path):
    bench = Bench.make(tmp_path, plan_of("none"))
    coordinator = CoordinatorProcess(bench)
    try:
        pid = coordinator.process.pid
        assert pid is not None
        own = Credentials.load(bench.workspace.operator, "the test")
        before, bomb = largest(pid), bytes(BOMB_BYTES)
        with ThreadPoolExecutor(CONNECTIONS) as senders:
            sent = [
                senders.submit(answer, coordinator.address, own, bomb, gzip=True)
                for _ in range(CONNECTIONS)
            ]
            sent.append(
                senders.submit(answer, coordinator.address, own, bytes(5 << 20), gzip=False)
            )
            codes = {one.result() for one in sent}
            # Meanwhile and afterwards others are served.
            link = open_link(bench.client_settings(0, coordinator.address))
            assert link.federation(Identity.load(bench.state(0)).client_id).run
            link.close()
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert largest(pid) - before < MOST_GROWTH
    finally:
        coordinator.close()
