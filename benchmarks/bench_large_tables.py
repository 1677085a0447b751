"""A simulation whose private tables outgrow memory: FedRAP, PLGC and GPFedRec, as of MovieLens-1M.

`fedrec simulate` as a user starts it, with worker processes, under a limit of memory for all of
them together (a cgroup, where this account may make one: version 1, or systemd's). Printed for each
algorithm: seconds a round, bytes written a round over those of the table, the most that the run's
folder took over the table, peak memory.

    python benchmarks/bench_large_tables.py --data ml-1m/interactions.csv [--memory-gib 4]
    python benchmarks/bench_large_tables.py --users 600 --items 3706

Without --data users are made up; `fedrec data import` makes the file that --data takes. Tables of
2.9 GB want 9 GB of disk in --folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import describe_machine, summary

ALGORITHMS = {
    "gpfedrec": 'name = "gpfedrec"',
    "fedrap": 'name = "fedrap"\ndim = 32',
    "plgc": 'name = "plgc"\n'
    'base = {name = "fedmf", dim = 32, local_epochs = 10, batch_size = 2048}',
}
EXPOSED = ("--accept-exposure",)
"""GPFedRec's server reads each update."""
SETTINGS = """
[federation]
name = "large"
maximum_users = 8192
minimum_item_users = 1
[data]
path = "{data}"
[algorithm]
{algorithm}
[update]
structure = "dense"
clip = 256.0
[protection]
name = "none"
[rounds]
total = {rounds}
[evaluation]
every_rounds = 1
[output]
runs = "{runs}"
[client]
device = "cpu"
workers = {workers}
memory_mib = {memory_mib}
"""


class Limit:
    """A limit of memory for a process and its children, as far as this account may set one."""

    def __init__(self, n_bytes: int) -> None:
        self._v1 = Path("/sys/fs/cgroup/memory")
        self._group: Path | None = None
        self.prefix: list[str] = []
        if (self._v1 / "memory.limit_in_bytes").exists():
            with contextlib.suppress(OSError):
                group = Path(tempfile.mkdtemp(prefix="fedrec-bench-", dir=self._v1))
                (group / "memory.limit_in_bytes").write_text(str(n_bytes))
                self._group = group
        elif shutil.which("systemd-run"):
            bus = [] if os.geteuid() == 0 else ["--user"]
            self.prefix = ["systemd-run", *bus, "--scope", "-q", "-p", f"MemoryMax={n_bytes}"]
        gib = n_bytes / 2**30
        kind = f"a cgroup of {gib:g} GiB" if self._group or self.prefix else "NO LIMIT can be set"
        self.described = f"{kind} for the run and its workers"

    def enter(self) -> None:
        """Move this process, a child that is about to become the run, under the limit."""
        if self._group is not None:
            (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        if self._group is not None:
            self._group.rmdir()


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def total(pid: int, file: str, field: str) -> int:
    """Return the sum of a field of all processes of a tree."""
    found = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{one}/{file}").read_text()
            found += sum(int(n) for n in re.findall(rf"^{field}:\s+(\d+)", text, re.MULTILINE))
    return found


def watch(pid: int, folder: Path, peaks: dict[str, int], done: threading.Event) -> None:
    """Note the most memory and disk until the run is over."""
    while not done.wait(0.3):
        anonymous = total(pid, "smaps_rollup", "Anonymous") << 10
        peaks["memory"] = max(peaks["memory"], anonymous)
        used = 0
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                used += path.stat().st_blocks * 512 if path.is_file() else 0
        peaks["disk"] = max(peaks["disk"], used)


def run(algorithm: str, folder: Path, arguments: argparse.Namespace, data: Path) -> None:
    """Run one algorithm and print what it took."""
    settings = folder / f"{algorithm}.toml"
    runs = folder / "runs"
    settings.write_text(
        SETTINGS.format(
            data=data,
            algorithm=ALGORITHMS[algorithm],
            rounds=arguments.rounds,
            runs=runs,
            workers=arguments.workers,
            memory_mib=arguments.memory_mib,
        )
    )
    fedrec = str(Path(sys.executable).with_name("fedrec"))
    checked = subprocess.run(
        [fedrec, "check", str(settings), "--json", *EXPOSED],
        capture_output=True,
        text=True,
        check=True,
    )
    table = json.loads(checked.stdout)["private"]["table_bytes"]
    limit = Limit(int(arguments.memory_gib * 2**30))
    process = subprocess.Popen(
        [*limit.prefix, fedrec, "simulate", str(settings), *EXPOSED],
        preexec_fn=limit.enter,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )
    peaks, done = {"memory": 0, "disk": 0}, threading.Event()
    watching = threading.Thread(target=watch, args=(process.pid, runs, peaks, done), daemon=True)
    watching.start()
    seconds, written, lines, before = [], [], [], 0
    begun = time.perf_counter()
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        now = total(process.pid, "io", "wchar")
        if found := re.search(r"round \d+/\d+ +train.* ([\d.]+) s$", line.rstrip()):
            seconds.append(float(found.group(1)))
            written.append(now - before)
        before = now
    code = process.wait()
    took = time.perf_counter() - begun
    done.set()
    watching.join()
    limit.remove()
    if code or not seconds:
        print("".join(lines[-20:]))
        raise SystemExit(f"{algorithm}: the run ended with exit code {code}")
    print(f"\n{algorithm}: one version of the tables {table / 1e9:.2f} GB; {limit.described}")
    print(f"  a training round, measured in the same  {summary(seconds)}")
    print(
        f"  written a training round                {max(written) / table:.2f} x the table, at most"
    )
    print(f"  the run's folder, at most               {peaks['disk'] / table:.2f} x the table")
    print(f"  memory of all processes, at most        {peaks['memory'] / 2**30:.2f} GiB")
    print(f"  the whole command                       {took:.0f} s")
    shutil.rmtree(runs)


def made_up(path: Path, n_users: int, n_items: int) -> None:
    """Write interactions of made-up users, 100 each."""
    from fedrec.data import generate
    from fedrec.data.writing import write_interactions

    data = generate(n_users=n_users, n_items=n_items, n_clusters=8, interactions_per_user=100)
    write_interactions(path, data.interactions)


def main() -> None:
    """Print what large tables cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--data", type=Path, help="interactions, as fedrec data import writes them")
    parser.add_argument("--users", type=int, default=6_040, help="made-up users without --data")
    parser.add_argument("--items", type=int, default=3_706, help="their items")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="limit of all processes")
    parser.add_argument("--memory-mib", type=int, default=1024, help="client.memory_mib")
    parser.add_argument(
        "--folder", type=Path, help="where the run lies; by default a temporary one"
    )
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        data = arguments.data and arguments.data.absolute()
        if data is None:
            data = folder / "interactions.csv"
            made_up(data, arguments.users, arguments.items)
        for algorithm in arguments.algorithms:
            run(algorithm, folder, arguments, data)


if __name__ == "__main__":
    main()
