"""What each party of a federation takes, beside what `fedrec check --sizing` says.

Coordinator, key authority and clients are processes over TLS, each with its kit, on made-up users.
Printed are the most resident memory, the processor time and the most bytes in the folder of the
coordinator, of the key authority and of one client, seen every 0.2 s.
Beside them, in brackets, is what `check` says of the whole run: processor time of all rounds and of
a start, which takes 1.4, 1.2 and 3.5 s. A client's own also has its training and measuring. The
constants in common/fedrec/plan/sizing.py were fitted to these figures.

    python benchmarks/bench_sizing.py
    python benchmarks/bench_sizing.py --case 2000,1500,3 --protection none --rounds 4
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from measuring import describe_machine, peak_bytes

from fedrec.data import generate
from fedrec.plan.price import price
from fedrec.plan.schema import Plan
from fedrec.plan.sizing import FITTED, sizes
from fedrec.settings.schema import Settings
from fedrec_lab.demo.workspace import DemoData, Workspace, provisioned

CASES = (
    (1_000, 1_000, 3), (1_000, 4_000, 3), (1_000, 4_000, 12), (8_000, 4_000, 3), (500, 16_000, 3)
)  # fmt: skip
START_SECONDS = {"coordinator": 1.4, "authority": 1.2, "client": 3.5}
"""Users, items and clients."""


def kits(folder: Path, case: tuple[int, int, int], protection: str, rounds: int) -> Workspace:
    """Make kits for a federation on made-up users."""
    n_users, n_items, n_clients = case
    made = generate(n_users=n_users, n_items=n_items, n_clusters=6, interactions_per_user=60)
    plan = Plan.model_validate(
        {
            "federation": {"name": "sizing", "maximum_users": 8192, "minimum_item_users": 1},
            "algorithm": {"name": "fedals"},
            "protection": {"name": protection},
            "rounds": {"total": rounds, "minimum_clients": n_clients},
        }
    )
    data = DemoData(name="", interactions=made.interactions, catalogue=made.catalogue, note="")
    return provisioned(folder / "run", plan, data, n_clients=n_clients)


def size(folder: Path) -> int:
    """Return the bytes in a folder whose files come and go."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size * path.is_file()
    return total


def measure(case: tuple[int, int, int], protection: str, rounds: int) -> None:
    """Run a federation to its end and print a row for each party."""
    with tempfile.TemporaryDirectory() as scratch:
        workspace = kits(Path(scratch), case, protection, rounds)
        parties = workspace.parties
        log = (Path(scratch) / "log").open("w")

        def start(*words: str | Path, out: int | None = None) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "fedrec", *map(str, words)]
            return subprocess.Popen(command, stdout=out or log, stderr=log, text=True, cwd=scratch)

        coordinator = start(
            "coordinator", "run", parties.coordinator, "--until-finished", out=subprocess.PIPE
        )
        assert coordinator.stdout is not None  # a pipe
        address = json.loads(coordinator.stdout.readline())["address"]
        authority = start(
            "keys", "authority", "run", address, "--into", parties.authority, "--every-seconds", "1"
        )
        called = f"client.coordinator={address}"
        clients = [start("client", "run", each, "--set", called) for each in parties.clients]
        folders = {
            "coordinator": parties.coordinator.parent,
            "authority": parties.authority,
            "client": parties.clients[0].parent,
        }
        most = dict.fromkeys(folders, 0)
        pids = {
            "coordinator": coordinator.pid, "authority": authority.pid, "client": clients[0].pid
        }  # fmt: skip
        memory, over = dict.fromkeys(folders, 0), threading.Event()

        def look() -> None:
            while not over.wait(0.2):
                for name, folder in folders.items():
                    most[name] = max(most[name], size(folder))
                    # A process that has ended has no such line.
                    with suppress(OSError, StopIteration):
                        memory[name] = max(memory[name], peak_bytes(pids[name]))

        looking = threading.Thread(target=look)
        looking.start()
        used = {}
        for process in clients:
            used["client"] = os.wait4(process.pid, 0)
            if used["client"][1]:
                coordinator.terminate()
        authority.send_signal(signal.SIGTERM)
        used["authority"] = os.wait4(authority.pid, 0)
        used["coordinator"] = os.wait4(coordinator.pid, 0)
        over.set()
        looking.join()
        log.close()
        if used["coordinator"][1] or used["client"][1]:
            sys.exit(f"A party failed:\n{(Path(scratch) / 'log').read_text()[-3000:]}")
        found = price(workspace.plan, n_items=case[1], n_clients=case[2])
        own_users = -(-case[0] // case[2])
        memory_mib = Settings().client.memory_mib
        needed = sizes(workspace.plan, found, own_users=own_users, memory_mib=memory_mib)
        for name, need in zip(folders, needed, strict=True):
            rusage = used[name][2]
            seconds = rusage.ru_utime + rusage.ru_stime
            facts = need.facts
            check = START_SECONDS[name] + facts["processor_seconds"] * found.facts["n_rounds"]
            print(f"{case} {protection} {rounds} rounds, {name}: "
                  f"{memory[name] / 1e6:.0f} MB ({facts['memory_bytes'] / 1e6:.0f}), "
                  f"disk {most[name] / 1e6:.1f} MB ({facts['disk_bytes'] / 1e6:.1f}), "
                  f"{seconds:.2f} s ({check:.2f})", flush=True)  # fmt: skip


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", help="USERS,ITEMS,CLIENTS")
    parser.add_argument("--protection", action="append", choices=FITTED)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    cases = [tuple(map(int, each.split(","))) for each in options.case or ()] or CASES
    print(describe_machine(), flush=True)
    for case in cases:
        for protection in options.protection or FITTED:
            measure(case, protection, options.rounds)


if __name__ == "__main__":
    main()
