"""Durable, acknowledged uploads of 5.3 MB from 8 client processes, against their limits.

- fedrec: the coordinator receives, hashes, verifies the signature, writes, fsyncs, renames,
  commits, parses and adds up before it acknowledges.
- bare: a gRPC stream server that throws everything away; nothing is checked or kept.
- disk: the clients write, fsync and rename the same eight files themselves, each its own.
- durable: the bare server, which writes, fsyncs and renames each stream in threads before it
  answers; nothing is checked. Where network and disk share processors, nobody can have both limits.

fedrec, bare and durable are alike in everything else: the same eight client processes, one server
process, one connection and one stream for each client, mutual TLS, 1 MiB chunks, the same options
of gRPC. All are measured in turn in every repetition; what a round still does after its last
acknowledgement (summing, publishing, deleting) is waited for, so that it is beside no other side.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from pathlib import Path

import grpc
import numpy as np
from measuring import describe_machine, processor_seconds, summary
from small_federation import federation, signed_header, training_vector

from fedrec.identity.certificates import CERTIFICATE_FILE, Credentials
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_authority_key, read_issuer
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec.protection.protection import in_one_step
from fedrec.wire.chunks import chunks
from fedrec.wire.grpc_calls import open_channel
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import Train
from fedrec_lab.demo.parties import Processes
from fedrec_server.service.tls_port import options

N_CLIENTS = 8
N_ITEMS, RANK = 234 * ROW_STEP, 21
"""So many that nothing is padded where everybody holds everything: the list of rows is whole."""
PAUSE_SECONDS = 0.5
"""For what still goes on when a side is done, such as deleting files."""


def bare_server(ready, certificate: str, scratch: str) -> None:
    """Serve a stream method that throws everything away, and one that keeps it."""

    async def serve() -> None:
        async def swallow(requests, context):
            total = 0
            async for request in requests:
                total += len(request)
            return str(total).encode()

        async def keep(requests, context):
            numbers[0] += 1
            path, total = Path(scratch) / f"kept-{numbers[0]}", 0
            with path.open("wb", buffering=0) as file:
                async for request in requests:
                    await asyncio.to_thread(file.write, request)
                    total += len(request)
                await asyncio.to_thread(os.fsync, file)
            path.rename(path.with_suffix(".done"))
            path.with_suffix(".done").unlink()
            return str(total).encode()

        numbers = [0]
        server = grpc.aio.server(options=options(N_CLIENTS))
        handlers = {
            "Put": grpc.stream_unary_rpc_method_handler(swallow),
            "Keep": grpc.stream_unary_rpc_method_handler(keep),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bare", handlers),))
        own = Credentials.load(Path(certificate), "the benchmark")
        credentials = grpc.ssl_server_credentials(
            [(own.private_key, own.certificate)], own.issuer, require_client_auth=True
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        ready.send(port)
        await server.wait_for_termination()

    asyncio.run(serve())


def client(number: int, pipe, settings: dict) -> None:
    """Do what the parent asks for: prepare a round, upload it, send the bare stream, write."""
    identity, plan = Identity.load(Path(settings["state"])), settings["plan"]
    certificate = (Path(settings["state"]) / CERTIFICATE_FILE).read_bytes()
    own = identity.credentials(certificate, read_issuer(Path(settings["authority"])))
    link = GrpcLink(settings["address"], own)
    info = link.federation(identity.client_id)
    _, secrets = open_epoch(
        roster_json=info.roster_json,
        server_context=info.server_context,
        wrapped=info.wrapped_secrets,
        identity=identity,
        pinned_authority_key=read_authority_key(Path(settings["authority"])),
    )
    protection = in_one_step(protection_of(plan, info.n_items))
    member = protection.member(info.server_context, secrets.protection_secret)

    def protected(layout: Layout, values: np.ndarray) -> bytes:
        return member.over(protection.over(layout.vector_spec)).protect(values)

    counting, training = Layout.counting(plan, info.n_items), Layout.of(plan, info.n_items)
    # Everybody holds everything, so that all rows travel.
    counts = np.zeros(counting.length, dtype=np.int64)
    counts[counting.count_slice] = 1
    vector = training_vector(training, number)
    payloads = {"count": protected(counting, counts), "train": protected(training, vector)}
    channel = open_channel(f"127.0.0.1:{settings['bare_port']}", own)
    put, keep = channel.stream_unary("/Bare/Put"), channel.stream_unary("/Bare/Keep")
    header, payload, version = None, b"", 0
    while True:
        order = pipe.recv()
        if order == "prepare":
            while True:
                task = link.next_task(identity.client_id, info.run, version, wait_seconds=20)
                version = task.published_round
                if isinstance(task.task, Train):
                    break
            payload = payloads[task.task.kind]
            header = signed_header(identity, info, plan, task.task, payload)
        elif order == "fedrec":
            link.submit_update(header, payload)
        elif order == "bare":
            put((bytes(chunk.data) for chunk in chunks(payload)), timeout=60)
        elif order == "durable":
            keep((bytes(chunk.data) for chunk in chunks(payload)), timeout=60)
        elif order == "disk":
            path = Path(settings["scratch"]) / f"file-{number}"
            with path.open("wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            path.rename(path.with_suffix(".done"))
        elif order == "end":
            return
        pipe.send(len(payload))


def main() -> None:
    """Print throughput of all and fedrec's share of the slower limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    print(describe_machine())
    before = os.getloadavg()[0]
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        workspace = federation(
            Path(scratch) / "run",
            n_clients=N_CLIENTS,
            n_items=N_ITEMS,
            rank=RANK,
            rounds=runs + 2,
            protection="none",
        )
        ours, theirs = context.Pipe()
        certificate = str(workspace.folder / "keys" / "coordinator.pem")
        bare = context.Process(target=bare_server, args=(theirs, certificate, scratch), daemon=True)
        bare.start()
        port = ours.recv()
        with Processes(Path(scratch) / "logs") as processes:
            coordinator = processes.start(
                "coordinator",
                "coordinator",
                "run",
                str(workspace.parties.coordinator),
                talks=True,
            )
            address = processes.first_line("coordinator")["address"]
            pipes, children = [], []
            for number in range(N_CLIENTS):
                mine, other = context.Pipe()
                settings = {
                    "state": str(workspace.client_states[number]),
                    "address": address,
                    "authority": str(workspace.folder / "keys" / "authority.pub.json"),
                    "bare_port": port,
                    "plan": workspace.plan,
                    "scratch": scratch,
                }
                child = context.Process(target=client, args=(number, other, settings), daemon=True)
                child.start()
                pipes.append(mine)
                children.append(child)
            everyone = [coordinator.pid, bare.pid, *(child.pid for child in children)]

            def everybody(order: str) -> float:
                begin = time.perf_counter()
                for pipe in pipes:
                    pipe.send(order)
                sizes = [pipe.recv() for pipe in pipes]
                return sum(sizes) / (time.perf_counter() - begin) / 1e6

            rates: dict[str, list[float]] = {"fedrec": [], "bare": [], "disk": [], "durable": []}
            worked = dict.fromkeys(rates, 0.0)
            everybody("prepare")
            for run in range(runs + 1):
                for name, values in rates.items():
                    time.sleep(PAUSE_SECONDS)
                    before_it = processor_seconds(everyone)
                    rate = everybody(name)
                    if run:
                        values.append(rate)
                        worked[name] += processor_seconds(everyone) - before_it
                    if name == "fedrec":
                        # The next round opens when this one is published.
                        everybody("prepare")
            for pipe in pipes:
                pipe.send("end")
            for child in children:
                child.join(10)
        bare.terminate()
    print(f"  load averages before and after: {before:.1f}, {os.getloadavg()[0]:.1f}")
    for name, values in rates.items():
        milliseconds = 1000 * worked[name] / runs
        print(f"  {name}: {summary(values, 'MB/s')}, {milliseconds:.0f} ms of all processors")
    limit = min(("bare", "disk"), key=lambda name: statistics.median(rates[name]))
    shares = [ours / other for ours, other in zip(rates["fedrec"], rates[limit], strict=True)]
    print(f"  fedrec / {limit} (the slower limit): {summary(shares, 'x')}")
    shares = [ours / other for ours, other in zip(rates["fedrec"], rates["durable"], strict=True)]
    print(f"  fedrec / durable (both limits on the same processors): {summary(shares, 'x')}")


if __name__ == "__main__":
    main()
