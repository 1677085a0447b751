"""How soon a coordinator or a client with about 1 GB of state is back after `kill -9`.

Four clients play rounds with updates of 64 MiB until the state folder has as many bytes as asked
for: the published sums that late clients still need, and in the last round three of four
acknowledged updates. Then the coordinator is killed and started again several times. A start goes
from the command to the first answer to a member: Python and its imports, the check that every kept
file is what its row says, and the handshake. At the end the fourth update arrives, and the round
is published: nothing was lost.

The client has users whose own tables (FedRAP's, filled with noise) have as many bytes. It is killed
when a round with them is published, and started several times: from the command until it has its
private state in hand, checked, and is to train the next round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from measuring import describe_machine, summary
from small_federation import federation
from uploader import Uploader

from fedrec.errors import FedrecError
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec.settings.validation import load_settings
from fedrec.wire.grpc_link import GrpcLink
from fedrec_lab.demo.parties import Processes

N_CLIENTS = 4
N_ITEMS, RANK = 1024 * ROW_STEP, 31
N_OWN_ITEMS, DIM = 64 * ROW_STEP, 128
LIMIT_SECONDS = 5.0


def bytes_in(folder: Path) -> int:
    """Return how many bytes a folder's files have."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def processor_seconds(pid: int) -> float:
    """Return how long a process has kept processors busy."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_clients(runs: int, n_bytes: int) -> None:
    """Fill a client's private state, kill and start, and print how long starts take."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = federation(
            folder / "run", n_clients=1, n_items=N_OWN_ITEMS, rank=0, rounds=100,
            protection="none", users_per_client=n_bytes // (4 * N_OWN_ITEMS * DIM),
            algorithm={"name": "fedrap", "dim": DIM},
        )  # fmt: skip
        processes = stack.enter_context(Processes(folder / "logs"))
        processes.start(
            "coordinator", "coordinator", "run", str(found.parties.coordinator),
            "--accept-exposure", talks=True,
        )  # fmt: skip
        address = processes.first_line("coordinator")["address"]
        script = Path(__file__).with_name("small_federation.py")
        command = [sys.executable, str(script), str(found.parties.clients[0]), address, "fill"]

        def client() -> subprocess.Popen[str]:
            with (folder / "client.log").open("a") as log:
                return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

        def wait_for_training(process: subprocess.Popen[str]) -> None:
            assert process.stdout is not None  # a pipe
            while (line := process.stdout.readline()) != "train\n":
                if not line:
                    raise SystemExit((folder / "client.log").read_text()[-2000:])

        def end(process: subprocess.Popen[str]) -> None:
            process.kill()
            process.wait()

        first = client()
        stack.callback(end, first)
        # What is trained first is published when the client is asked again.
        for _ in range(2):
            wait_for_training(first)
        end(first)
        state = found.client_states[0]
        print(f"client's folder: {bytes_in(state):,} bytes")
        seconds = []
        for _ in range(runs):
            begin = time.perf_counter()
            process = client()
            stack.callback(end, process)
            wait_for_training(process)
            seconds.append(time.perf_counter() - begin)
            end(process)
        print(f"  start after kill -9 until it trains: {summary(seconds)}, wanted below "
              f"{LIMIT_SECONDS}; load {os.getloadavg()[0]:.1f}")  # fmt: skip


def main() -> None:
    """Measure the coordinator's starts, then the client's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, dest="n_bytes")
    options = parser.parse_args()
    print(describe_machine())
    start_coordinators(options.runs, options.n_bytes)
    start_clients(options.runs, options.n_bytes)


def start_coordinators(runs: int, n_bytes: int) -> None:
    """Make the state, kill and start, and print how long starts take."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = federation(
            folder / "run", n_clients=N_CLIENTS, n_items=N_ITEMS, rank=RANK, rounds=100,
            protection="none",
        )  # fmt: skip
        authority = found.folder / "keys" / "authority.pub.json"
        state = Path(load_settings(found.parties.coordinator).coordinator.state)

        def started() -> tuple[int, Processes, str]:
            processes = stack.enter_context(Processes(folder / "logs"))
            process = processes.start(
                "coordinator", "coordinator", "run", str(found.parties.coordinator),
                "--accept-exposure", talks=True,
            )  # fmt: skip
            return process.pid, processes, processes.first_line("coordinator")["address"]

        _, processes, address = started()
        clients = [
            Uploader(address, found.plan, client_state, authority, number)
            for number, client_state in enumerate(found.client_states)
        ]
        while True:
            with ThreadPoolExecutor(N_CLIENTS) as pool:
                list(pool.map(Uploader.prepare, clients))
            before = max(client.version for client in clients)
            for client in clients[1:]:
                client.send()
            if bytes_in(state) >= n_bytes:
                break
            clients[0].send()
            clients[0].wait_for_the_sum(before)
        print(f"state folder: {bytes_in(state):,} bytes, {before} rounds published, then")
        print(f"  {N_CLIENTS - 1} of {N_CLIENTS} updates of {clients[0].update_bytes:,} bytes")
        who, own, run = clients[0].identity, clients[0].own, clients[0].info.run
        for client in clients:
            client.link.close()
        seconds, busy = [], []
        for _ in range(runs):
            processes.kill("coordinator")
            begin = time.perf_counter()
            pid, processes, address = started()
            with GrpcLink(address, own) as link:
                assert link.federation(who.client_id).run == run
            seconds.append(time.perf_counter() - begin)
            busy.append(processor_seconds(pid))
        print(f"  start after kill -9: {summary(seconds)}, wanted below {LIMIT_SECONDS}")
        print(f"    its processor time: {summary(busy)}; load {os.getloadavg()[0]:.1f}")
        with GrpcLink(address, own) as link:
            clients[0].link = link
            clients[0].send()
            try:
                clients[0].wait_for_the_sum(before)
            except FedrecError as error:
                raise SystemExit(f"The round was not published: {error}") from error
        print("  the round that was interrupted is published")


if __name__ == "__main__":
    main()
