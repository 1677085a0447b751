"""Many clients that wait, in one process and in fifty."""

import asyncio
import os
import subprocess
import sys

import grpc
import numpy as np
import pytest
from world.engine import Bench, credentials, identity
from world.light import federation_of, made_up
from world.serving import serving

from fedrec.identity.document import write_secret
from fedrec.ids import RoundId
from fedrec.protection import NoProtection
from fedrec.protection.masks import parameters_for
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


PROCESSES = 50
VALUES = 100
LONGEST_SECONDS = 280


@pytest.mark.long
@pytest.mark.timeout(LONGEST_SECONDS + 60)
def test_fifty_processes(tmp_path):
    federation = federation_of(
        PROCESSES, values=VALUES, minimum_clients=PROCESSES, deadline_seconds=600,
        mask_step_seconds=200.0,
    )  # fmt: skip
    graph = parameters_for(PROCESSES, federation.plan.protection.tolerance)
    assert (graph.degree, graph.threshold, graph.quorum) == (16, 11, 28)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with serving(Bench(federation=federation), tmp_path) as served:
        children = []
        for number in range(PROCESSES):
            folder = tmp_path / f"client-{number}"
            folder.mkdir(mode=0o700)
            identity(number).save(folder)
            write_secret(folder / "own.pem", credentials(number).to_pem())
            command = [
                sys.executable, "-m", "world.light_process", served.address,
                str(folder), str(number), str(VALUES), str(federation.vectors.largest.max_summands),
            ]  # fmt: skip
            children.append(
                subprocess.Popen(
                    command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            )
        try:
            for child in children:
                note, complained = child.communicate(timeout=LONGEST_SECONDS)
                assert child.returncode == 0, complained.decode()
                assert note.decode().strip() == "all rounds are published"
        finally:
            for child in children:
                child.kill()
                child.communicate()
        store = served.coordinator.engine.run.store
        spec = federation.vectors.largest
        codec = NoProtection(spec, NoProtection.plan(spec))
        context, _ = codec.generate()
        for round_id in (1, 2, 3):
            record = store.published(RoundId(round_id))
            assert record is not None and len(record.contributions) == PROCESSES
            found = codec.member(context).reveal(
                store.spool.read(record.name, record.blob), PROCESSES
            )
            wanted = sum(made_up(spec.length, number, round_id) for number in range(PROCESSES))
            assert np.array_equal(found, wanted)
