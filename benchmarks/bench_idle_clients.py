"""Clients that wait: 2,000 connections that carry 10,000 long polls, on one coordinator process.

Every client has its own certificate and its own TLS connection, on which it makes the same number
of long polls at once. Three clients are asked in a round; they hold their updates back until
everybody waits, then upload, and the publication wakes all others, who poll again at once. Printed
are the coordinator's resident memory for each connection and each poll, its processor time while
everybody waits, and how long after a publication the polls were answered: from the time that the
coordinator noted to the time at which the clients' program has the answer in hand. All clients are
one program on the same processors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from measuring import describe_machine, processor_seconds
from small_federation import federation, signed_header, training_vector

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.federation import Workspace

from fedrec.identity.certificates import CERTIFICATE_FILE, Credentials
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_issuer
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec.protection.protection import in_one_step
from fedrec.wire.admin_link import AdminLink
from fedrec.wire.chunks import chunk_to_part, chunks
from fedrec.wire.convert import TASK, UPLOAD_HEADER
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import FederationInfo, Train
from fedrec.wire.v1 import coordinator_pb2, update_pb2
from fedrec.wire.v1.coordinator_pb2_grpc import CoordinatorStub
from fedrec_lab.demo.parties import Processes

ASKED = 3
WAIT_SECONDS = 280.0
HANDSHAKES_AT_ONCE = 20
PATIENCE_SECONDS = 400.0


@dataclass
class Crowd:
    """All clients, and what they know of the run.

    Attributes:
        waiting: how many polls are with the coordinator.
        tasks: who was asked to do what; kept until `upload`.
        woken: when polls heard of a round, by its number.
        failed: what calls ended with, and how often.
    """

    info: FederationInfo
    workspace: Workspace
    waiting: int = 0
    tasks: dict[int, Train] = field(default_factory=dict)
    woken: dict[int, list[float]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


class Client:
    """One client: a certificate, a connection, a few polls."""

    def __init__(self, crowd: Crowd, number: int, address: str, issuer: bytes) -> None:
        self._crowd, self._number = crowd, number
        state = crowd.workspace.client_states[number]
        self._identity = Identity.load(state)
        own = self._identity.credentials((state / CERTIFICATE_FILE).read_bytes(), issuer)
        found = grpc.ssl_channel_credentials(own.issuer, own.private_key, own.certificate)
        self.channel = grpc.aio.secure_channel(
            address, found, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self._stub = CoordinatorStub(self.channel)

    async def poll(self) -> None:
        """Wait for something to do, again and again."""
        crowd, version = self._crowd, 0
        while True:
            request = coordinator_pb2.NextTaskRequest(
                client_id=self._identity.client_id,
                run=crowd.info.run,
                version=version,
                wait_seconds=WAIT_SECONDS,
            )
            crowd.waiting += 1
            try:
                answer = await self._stub.NextTask(request, timeout=WAIT_SECONDS + 60)
            except grpc.aio.AioRpcError as error:
                what = f"{error.code().name}: {error.details()}"
                crowd.failed[what] = crowd.failed.get(what, 0) + 1
                await asyncio.sleep(1.0)
                continue
            finally:
                crowd.waiting -= 1
            task = TASK.from_proto(answer)
            if task.published_round > version:
                version = task.published_round
                crowd.woken.setdefault(version, []).append(time.time())
            if isinstance(task.task, Train):
                crowd.tasks[self._number] = task.task
                await crowd.go_on.wait()

    async def upload(self, task: Train) -> None:
        """Send what a round asks for."""
        plan, info = self._crowd.workspace.plan, self._crowd.info
        counting = task.kind == "count"
        layout = (Layout.counting if counting else Layout.of)(plan, info.n_items)
        vector = np.zeros(layout.length, dtype=np.int64)
        vector[layout.count_slice] = 1
        if task.kind == "train":
            vector = training_vector(layout, self._number)
        protection = in_one_step(protection_of(plan, info.n_items))
        member = protection.member(info.server_context, b"none").over(
            protection.over(layout.vector_spec)
        )
        payload = member.protect(vector)
        header = signed_header(self._identity, info, plan, task, payload)
        put = self.channel.stream_unary("/fedrec.wire.v1.Coordinator/SubmitUpdate")
        first = update_pb2.UploadPart(header=UPLOAD_HEADER.to_proto(header)).SerializeToString()
        parts = [chunk_to_part(update_pb2.UploadPart, chunk) for chunk in chunks(payload)]
        await put(iter([first, *parts]), timeout=60)


def resident(pid: int) -> int:
    """Return the bytes of a process that lie in memory."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def until(condition, what: str) -> None:
    """Wait for something, and say what did not come."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come within {PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(0.05)


def published_at(admin: AdminLink, number: int) -> float:
    """Return when the coordinator noted that a round was published."""
    for event in admin.events():
        if event.kind == "round published" and event.round == number:
            return event.unix_seconds
    raise SystemExit(f"The coordinator ended before round {number} was published.")


async def measure(crowd: Crowd, address: str, pid: int, arguments) -> None:
    """Connect everybody, let them wait, and wake them."""
    issuer = read_issuer(crowd.workspace.folder / "keys" / "authority.pub.json")
    clients = [Client(crowd, number, address, issuer) for number in range(arguments.clients)]
    each = arguments.polls // arguments.clients
    begin, empty = time.monotonic(), resident(pid)
    gate = asyncio.Semaphore(HANDSHAKES_AT_ONCE)

    async def connect(client: Client) -> None:
        async with gate:
            await asyncio.wait_for(client.channel.channel_ready(), PATIENCE_SECONDS)

    await asyncio.gather(*(connect(client) for client in clients))
    connected = resident(pid)
    print(
        f"  {len(clients):,} TLS connections in {time.monotonic() - begin:.1f} s: "
        f"{(connected - empty) / len(clients) / 1e3:.1f} kB each, beside {empty / 1e6:.0f} MB"
    )
    polls = [asyncio.ensure_future(c.poll()) for c in clients for _ in range(each)]
    admin = AdminLink(address, Credentials.load(crowd.workspace.operator, "the benchmark"))
    for number in range(1, arguments.rounds + 1):

        def settled() -> bool:
            wanted = len(polls) - ASKED * each
            return len(crowd.tasks) == ASKED and crowd.waiting == wanted

        await until(settled, f"{len(polls):,} polls before round {number}")
        await asyncio.sleep(1.0)
        if number == 1:
            waiting, worked = resident(pid), processor_seconds([pid])
            await asyncio.sleep(arguments.idle)
            idle = (processor_seconds([pid]) - worked) / arguments.idle
            print(
                f"  {crowd.waiting:,} polls wait: {(waiting - connected) / len(polls) / 1e3:.1f} "
                f"kB each, {waiting / 1e6:.0f} MB together, {100 * idle:.1f} % of one processor "
                f"over {arguments.idle:.0f} s"
            )
        waits, tasks = crowd.waiting, dict(crowd.tasks)
        crowd.tasks.clear()
        worked = processor_seconds([pid])
        await asyncio.gather(*(clients[n].upload(task) for n, task in tasks.items()))
        crowd.go_on.set()
        await until(
            lambda number=number, waits=waits: len(crowd.woken.get(number, ())) >= waits,
            f"{waits:,} answers of round {number}",
        )
        worked = processor_seconds([pid]) - worked
        crowd.go_on.clear()
        begin = await asyncio.to_thread(published_at, admin, number)
        after = sorted(at - begin for at in crowd.woken[number])[:waits]
        print(
            f"  round {number} woke {waits:,} polls: p50 {statistics.median(after):.2f} s, "
            f"p99 {after[int(len(after) * 0.99)]:.2f} s, last {after[-1]:.2f} s; "
            f"{worked:.1f} s of the coordinator's processor time"
        )
    print(f"  after that {resident(pid) / 1e6:.0f} MB; calls that failed: {crowd.failed or 'none'}")
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    admin.close()
    await asyncio.gather(*(client.channel.close() for client in clients))


def main() -> None:
    """Print memory, processor time and how long waking takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2000, help="certificates and connections")
    parser.add_argument("--polls", type=int, default=10_000, help="of all clients together")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(describe_machine())
    with tempfile.TemporaryDirectory() as scratch:
        workspace = federation(
            Path(scratch) / "run",
            n_clients=arguments.clients,
            n_items=ROW_STEP,
            rank=2,
            rounds=arguments.rounds + 2,
            protection="none",
            clients_per_round=ASKED,
        )
        with Processes(Path(scratch) / "logs") as processes:
            settings = str(workspace.parties.coordinator)
            coordinator = processes.start("coordinator", "coordinator", "run", settings, talks=True)
            address = processes.first_line("coordinator")["address"]
            state = workspace.client_states[0]
            first = Identity.load(state)
            issuer = read_issuer(workspace.folder / "keys" / "authority.pub.json")
            own = first.credentials((state / CERTIFICATE_FILE).read_bytes(), issuer)
            with GrpcLink(address, own) as link:
                info = link.federation(first.client_id)

            async def everything() -> None:
                await measure(
                    Crowd(info=info, workspace=workspace), address, coordinator.pid, arguments
                )

            asyncio.run(everything())
    load = os.getloadavg()[0]
    print(f"  load average at the end: {load:.1f}; clients and coordinator share the processors")


if __name__ == "__main__":
    main()
