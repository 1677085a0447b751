"""Durable, acknowledged uploads of 5.3 MB from 8 client processes, against two limits.

Limits: a bare gRPC stream server (aio, 1 MiB chunks, payload thrown away, nothing checked or
kept), and writing, fsyncing and renaming the same eight files, each process its own. fedrec's
coordinator receives, hashes, verifies the signature, writes, fsyncs, renames, commits, parses and
adds up before it acknowledges. Both speak mutual TLS. All three are measured in turn in every
repetition, by the same processes; what a round still does after its last acknowledgement (summing,
publishing, deleting) is waited for, so that neither limit is measured beside it.
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
from measuring import describe_machine, summary
from small_federation import federation, training_vector

from fedrec.config.plan import plan_fingerprint
from fedrec.demo.processes import Processes
from fedrec.identity.authority_key import read_authority_key, read_issuer
from fedrec.identity.certificates import CERTIFICATE_FILE, Credentials
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.training.layout import Layout, protection_of
from fedrec.training.rows import ROW_STEP
from fedrec.wire.chunks import Blob, split
from fedrec.wire.grpc_channel import open_channel
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import PROTOCOL_VERSION, Train, UploadHeader

N_CLIENTS = 8
N_ITEMS, RANK = 234 * ROW_STEP, 21
"""So many that nothing is padded where everybody holds everything: the list of rows is whole."""
PAUSE_SECONDS = 0.5
"""For what still goes on when a side is done, such as deleting files."""


def bare_server(ready, certificate: str) -> None:
    """Serve a stream method that throws everything away."""

    async def serve() -> None:
        async def swallow(requests, context):
            total = 0
            async for request in requests:
                total += len(request)
            return str(total).encode()

        server = grpc.aio.server()
        handler = grpc.stream_unary_rpc_method_handler(swallow)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("Bare", {"Put": handler}),)
        )
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
    protection = protection_of(plan, info.n_items)
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
    put = channel.stream_unary("/Bare/Put")
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
            blob = Blob.of(payload)
            unsigned = dict(
                protocol_version=PROTOCOL_VERSION,
                federation=info.federation,
                run=info.run,
                round=task.task.round,
                kind=task.task.kind,
                base_round=task.task.base_round,
                base_state=bytes(32),
                key_list=b"",
                nonce=b"",
                epoch=info.epoch,
                client_id=identity.client_id,
                catalogue_fingerprint=info.catalogue_fingerprint,
                plan_fingerprint=plan_fingerprint(plan),
                length=blob.length,
                digest=blob.digest,
                n_rows=info.n_items,
            )
            signature = identity.sign(UploadHeader(**unsigned).statement())
            header = UploadHeader(**unsigned, signature=signature)
        elif order == "fedrec":
            link.submit_update(header, payload)
        elif order == "bare":
            put((piece for _, piece in split(payload)), timeout=60)
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
    """Print throughput of the three and fedrec's share of the slower limit."""
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
        bare = context.Process(target=bare_server, args=(theirs, certificate), daemon=True)
        bare.start()
        port = ours.recv()
        with Processes(Path(scratch) / "logs") as processes:
            processes.start(
                "coordinator",
                "coordinator",
                "run",
                str(workspace.coordinator_settings),
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

            def everybody(order: str) -> float:
                begin = time.perf_counter()
                for pipe in pipes:
                    pipe.send(order)
                sizes = [pipe.recv() for pipe in pipes]
                return sum(sizes) / (time.perf_counter() - begin) / 1e6

            rates: dict[str, list[float]] = {"fedrec": [], "bare": [], "disk": []}
            everybody("prepare")
            for run in range(runs + 1):
                for name, values in rates.items():
                    time.sleep(PAUSE_SECONDS)
                    rate = everybody(name)
                    if run:
                        values.append(rate)
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
        print(f"  {name}: {summary(values, 'MB/s')}")
    limit = min(("bare", "disk"), key=lambda name: statistics.median(rates[name]))
    shares = [ours / other for ours, other in zip(rates["fedrec"], rates[limit], strict=True)]
    print(f"  fedrec / {limit} (the slower limit): {summary(shares, 'x')}")


if __name__ == "__main__":
    main()
