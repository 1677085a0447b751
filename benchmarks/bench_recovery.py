"""How soon a coordinator with about 1 GB of state serves again after `kill -9`.

Four clients play rounds with updates of 64 MiB until the state folder has as many bytes as asked
for: the published sums that late clients still need, and in the last round three of four
acknowledged updates. Then the coordinator is killed and started again several times. A start goes
from the command to the first answer to a member: Python and its imports, the check that every kept
file is what its row says, and the handshake. At the end the fourth update arrives, and the round
is published: nothing was lost.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from measuring import describe_machine, summary
from small_federation import federation
from uploader import Uploader

from fedrec.config.loading import load_settings
from fedrec.config.rows import ROW_STEP
from fedrec.errors import FedrecError
from fedrec.wire.grpc_link import GrpcLink
from fedrec_lab.demo.processes import Processes

N_CLIENTS = 4
N_ITEMS, RANK = 1024 * ROW_STEP, 31
LIMIT_SECONDS = 5.0


def bytes_in(folder: Path) -> int:
    """Return how many bytes a folder's files have."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def processor_seconds(pid: int) -> float:
    """Return how long a process has kept processors busy."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Make the state, kill and start, and print how long starts take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, dest="n_bytes")
    options = parser.parse_args()
    print(describe_machine())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = federation(
            folder / "run", n_clients=N_CLIENTS, n_items=N_ITEMS, rank=RANK, rounds=100,
            protection="none",
        )  # fmt: skip
        authority = found.folder / "keys" / "authority.pub.json"
        state = Path(load_settings(found.coordinator_settings).coordinator.state)

        def started() -> tuple[int, Processes, str]:
            processes = stack.enter_context(Processes(folder / "logs"))
            process = processes.start(
                "coordinator", "coordinator", "run", str(found.coordinator_settings),
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
            if bytes_in(state) >= options.n_bytes:
                break
            clients[0].send()
            clients[0].wait_for_the_sum(before)
        print(f"state folder: {bytes_in(state):,} bytes, {before} rounds published, then")
        print(f"  {N_CLIENTS - 1} of {N_CLIENTS} updates of {clients[0].update_bytes:,} bytes")
        who, own, run = clients[0].identity, clients[0].own, clients[0].info.run
        for client in clients:
            client.link.close()
        seconds, busy = [], []
        for _ in range(options.runs):
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
