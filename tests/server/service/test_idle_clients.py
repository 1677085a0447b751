"""Many clients that wait."""

import asyncio
import subprocess
import sys

import grpc
from world.engine import Bench, credentials, identity
from world.serving import serving

from fedrec.wire.v1 import coordinator_pb2
from fedrec.wire.v1.coordinator_pb2_grpc import CoordinatorStub
from fedrec_server.service.tls_port import OWN_FILES

CLIENTS, POLLS = 40, 200
SECONDS = 60.0


def channel_of(served, number):
    """Return a connection of a client's own."""
    own = credentials(number)
    found = grpc.ssl_channel_credentials(own.issuer, own.private_key, own.certificate)
    alone = (("grpc.use_local_subchannel_pool", 1),)
    return grpc.aio.secure_channel(served.address, found, options=alone)


def test_all_polls_wait_and_are_woken_by_a_publication(tmp_path):
    """Of 43 clients three are asked; the polls of the others end once, with the first round."""
    bench = Bench.of(CLIENTS + 3, minimum_clients=3, clients_per_round=3, total=3)

    async def wait(stub, number, run):
        request = coordinator_pb2.NextTaskRequest(
            client_id=identity(number).client_id, run=run, version=0, wait_seconds=SECONDS
        )
        answer = await stub.NextTask(request, timeout=SECONDS + 10)
        return int(answer.published_round)

    async def crowd(served, asked):
        others = [n for n in range(CLIENTS + 3) if n not in asked][:CLIENTS]
        channels = {n: channel_of(served, n) for n in others}
        stubs = {n: CoordinatorStub(channel) for n, channel in channels.items()}
        polls = [
            asyncio.ensure_future(wait(stubs[n], n, served.run))
            for n in others
            for _ in range(POLLS // CLIENTS)
        ]
        waiting = served.coordinator.engine.run.presence.waiters
        while len(waiting) < CLIENTS:
            await asyncio.sleep(0.01)
            waiting = served.coordinator.engine.run.presence.waiters
        assert not any(poll.done() for poll in polls)
        for n in asked:
            assert not await asyncio.to_thread(served.upload, n)
        answers = await asyncio.wait_for(asyncio.gather(*polls), SECONDS)
        await asyncio.gather(*(channel.close() for channel in channels.values()))
        return answers

    with serving(bench, tmp_path) as served:
        served.come(range(3))
        members = {identity(n).client_id: n for n in range(CLIENTS + 3)}
        asked = [members[who] for who in served.coordinator.engine.run.state.current.asked]
        assert len(asked) == 3
        assert asyncio.run(crowd(served, asked)) == [1] * POLLS


PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
from fedrec_server.service.tls_port import allow_connections
print(allow_connections(int(sys.argv[2])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def limited(hard, clients):
    """Return what a process with such a limit prints, and what it logs."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(hard), str(clients)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    numbers, *log = found.stdout.splitlines()[::-1]
    return numbers, "\n".join(log) + found.stderr


def test_the_limit_of_open_files_is_raised_as_far_as_it_may():
    numbers, log = limited(2000, 2000 - OWN_FILES)
    assert numbers == "2000 2000" and "too few" not in log


def test_too_low_a_limit_is_named_with_what_raises_it():
    numbers, log = limited(1000, 1000)
    assert numbers == "1000 1000"
    assert "too few open files" in log and f"ulimit -n {1000 + OWN_FILES}" in log
