"""A round's time beside silent upload streams, of strangers and of one member, against without.

A coordinator is a process with its default limits, and three clients upload updates of 0.75 MB, in
turn without and beside streams that say nothing: of somebody whose certificate the federation's
issuer made and whose key is in no roster, and of a member that takes part besides. All streams are
opened before a round begins; those that the coordinator ends are opened again a second later, for
as long as the round lasts. A round goes from the first upload to the published sum.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
from measuring import describe_machine, summary
from small_federation import federation
from uploader import Uploader

from fedrec.identity.certificates import Credentials
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_issuer
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_lab.demo.parties import Processes

N_CLIENTS = 3
N_ITEMS, RANK = 30 * ROW_STEP, 23
SUBMIT = "/fedrec.wire.v1.Coordinator/SubmitUpdate"
STREAMS_A_CONNECTION = 50
LIMIT = 1.5
AGAIN_SECONDS = 1.0
SETTLING_SECONDS = 0.5


def hold_open(pipe, address: str, pem: bytes, n_streams: int) -> None:
    """Keep so many silent streams open from the parent's word until its next."""
    asyncio.run(_hold_open(pipe, address, _credentials(pem), n_streams))


async def _hold_open(pipe, address: str, own: Credentials, n_streams: int) -> None:
    loop = asyncio.get_running_loop()
    shown = grpc.ssl_channel_credentials(own.issuer, own.private_key, own.certificate)
    name = (("grpc.ssl_target_name_override", address.rpartition(":")[0]),)
    while await loop.run_in_executor(None, pipe.recv) == "open":
        channels = [
            # Connections of their own, not one that gRPC shares between channels.
            grpc.aio.secure_channel(
                address, shown, options=[*name, ("grpc.use_local_subchannel_pool", 1)]
            )
            for _ in range(max(1, n_streams // STREAMS_A_CONNECTION))
        ]
        for channel in channels:
            await channel.channel_ready()
        opened = 0

        async def stream(number: int) -> None:
            nonlocal opened
            method = channels[number % len(channels)].stream_unary(SUBMIT)  # noqa: B023  # all end with the turn
            while True:
                opened += 1
                with suppress(grpc.aio.AioRpcError):
                    # Without a word: nothing is ever written.
                    await method()
                await asyncio.sleep(AGAIN_SECONDS)

        tasks = [loop.create_task(stream(number)) for number in range(n_streams)]
        await asyncio.sleep(SETTLING_SECONDS)
        pipe.send("open")
        assert await loop.run_in_executor(None, pipe.recv) == "close"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in channels:
            await channel.close()
        pipe.send(opened)


def _credentials(pem: bytes) -> Credentials:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.pem"
        path.write_bytes(pem)
        path.chmod(0o600)
        return Credentials.load(path, "the benchmark")


def play(clients: list[Uploader]) -> float:
    """Play one round and return its seconds."""
    # A round opens once all of them wait for it.
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(Uploader.prepare, clients))
    before = max(client.version for client in clients)
    senders = [threading.Thread(target=client.send) for client in clients]
    begin = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    clients[0].wait_for_the_sum(before)
    return time.perf_counter() - begin


def beside(pipe, clients: list[Uploader]) -> tuple[float, int]:
    """Play one round beside streams; return its seconds and how many were opened."""
    pipe.send("open")
    assert pipe.recv() == "open"
    seconds = play(clients)
    pipe.send("close")
    return seconds, pipe.recv()


def main() -> None:
    """Measure rounds in turn: without streams, and beside those of each kind and number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--streams", type=int, nargs="+", default=[200, 1000])
    options = parser.parse_args()
    print(describe_machine())
    sides = [(who, n) for n in options.streams for who in ("strangers", "one member")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        n_rounds = (len(sides) + 1) * (options.runs + 1) + 1
        found = federation(
            folder / "run", n_clients=N_CLIENTS, n_items=N_ITEMS, rank=RANK, rounds=n_rounds,
            protection="none",
        )  # fmt: skip
        processes = stack.enter_context(Processes(folder))
        processes.start(
            "coordinator", "coordinator", "run", str(found.parties.coordinator),
            "--accept-exposure", talks=True,
        )  # fmt: skip
        address = processes.first_line("coordinator")["address"]
        authority = found.folder / "keys" / "authority.pub.json"
        clients = [
            Uploader(address, found.plan, state, authority, number)
            for number, state in enumerate(found.client_states)
        ]
        print(f"{N_CLIENTS} clients, {clients[0].update_bytes:,} bytes each, protection none")
        stranger = Identity.create("stranger")
        made = AuthorityFolder(found.folder / "keys").authority.issuer.issue(
            "client", stranger.client_id, stranger.public.tls_key
        )
        callers = {
            "strangers": stranger.credentials(made, read_issuer(authority)),
            "one member": clients[-1].own,
        }
        context = mp.get_context("spawn")
        pipes = {}
        for who, n_streams in sides:
            ours, theirs = context.Pipe()
            arguments = (theirs, address, callers[who].to_pem(), n_streams)
            process = context.Process(target=hold_open, args=arguments, daemon=True)
            process.start()
            stack.callback(process.join, 10)
            stack.callback(ours.send, "end")
            pipes[who, n_streams] = ours
        play(clients)
        alone: list[float] = []
        ratios: dict[tuple[str, int], list[float]] = {side: [] for side in sides}
        seconds: dict[tuple[str, int], list[float]] = {side: [] for side in sides}
        opened: dict[tuple[str, int], list[int]] = {side: [] for side in sides}
        for run in range(options.runs + 1):
            normal = play(clients)
            if run:
                alone.append(normal)
            for side in sides:
                took, n_opened = beside(pipes[side], clients)
                if run:
                    seconds[side].append(took)
                    ratios[side].append(took / normal)
                    opened[side].append(n_opened)
        print(f"  without streams: {summary(alone)}")
        for side in sides:
            who, n_streams = side
            print(f"  beside {n_streams} of {who}: {summary(seconds[side])}")
            print(f"    opened in a round: median {statistics.median(opened[side]):,.0f}")
            ratio = statistics.median(seconds[side]) / statistics.median(alone)
            print(f"    against the round before: {summary(ratios[side], 'x')}")
            print(f"    ratio of medians {ratio:.2f}, wanted at most {LIMIT}")
        for client in clients:
            client.link.close()


if __name__ == "__main__":
    main()
