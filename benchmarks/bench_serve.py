"""`fedrec client serve` at MovieLens-1M's size: 3,706 items, 6,040 users with 165 items each.

The server is a process of its own, and so is who asks (`serve_load.py`). Measured are latencies at
1,000 questions a second, also while a version is published every second, questions a second when
each connection asks as soon as it was answered, resident memory, and whether answers are those of
`Recommender` bit for bit.

    python benchmarks/bench_serve.py [--runs 3] [--seconds 10]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from measuring import describe_machine, summary
from served_folder import ServedFolder

from fedrec.settings.validation import load_settings
from fedrec_client.own_recommender import own_recommender

N_ITEMS, N_USERS, PER_USER = 3706, 6040, 165
HERE = Path(__file__).parent
FEDREC = Path(sys.executable).parent / "fedrec"


@contextmanager
def server(*command: str | Path) -> Iterator[tuple[str, int]]:
    """Run a server, and yield its port and process id when it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        while True:
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except urllib.error.HTTPError:
                time.sleep(0.1)
        yield address.rpartition(":")[2], process.pid
    finally:
        process.terminate()
        process.wait()


def resident_mb(pid: int) -> dict[str, float]:
    """Return resident memory now and at its highest, in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {name: int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM")}


def processor_seconds(pid: int) -> float:
    """Return what a process has taken of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(port: str, kind: str, seconds: float) -> dict[str, Any]:
    """Ask from another process."""
    done = subprocess.run(
        [
            sys.executable,
            HERE / "serve_load.py",
            "127.0.0.1",
            port,
            kind,
            str(seconds),
            str(N_USERS),
        ],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def publishing(folder: ServedFolder) -> Iterator[None]:
    """Publish a version every second meanwhile."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(1.0):
            folder.publish()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def report(name: str, found: list[dict[str, Any]]) -> None:
    """Print one line for each figure of some runs."""
    print(name)
    for key, unit in (("p50_ms", "ms"), ("p99_ms", "ms"), ("worst_ms", "ms"), ("per_second", "/s")):
        print(f"  {key}: {summary([run[key] for run in found], unit)}")
    for key in ("refused", "lost"):
        print(f"  {key}: {sum(run[key] for run in found)}")
    print(f"  versions seen in a run: {statistics.median(run['versions'] for run in found):g}")


def check_bits(folder: ServedFolder, port: str) -> None:
    """Compare answers with `Recommender`'s, in this process."""
    known = own_recommender(load_settings(folder.settings_file))
    for user in known.user_ids[::20]:
        url = f"http://127.0.0.1:{port}/v1/recommend?user={user}&n=10"
        with urllib.request.urlopen(url) as answer:
            items = json.load(answer)["items"]
        ids, scores = known.recommend(user, 10)
        assert [item["item_id"] for item in items] == ids.tolist()
        found = np.array([item["score"] for item in items], dtype=np.float32)
        assert found.tobytes() == scores.tobytes()
    print(f"answers to {len(known.user_ids[::20])} users are Recommender's, bit for bit")


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("uvicorn", "httptools", "uvloop"))
    print(f"{describe_machine()}, {versions}")
    print(f"load average at the start: {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as place:
        folder = ServedFolder(Path(place), n_items=N_ITEMS, n_users=N_USERS, per_user=PER_USER)
        folder.publish()
        command = (FEDREC, "client", "serve", folder.settings_file, "--port", "0")
        with (
            server(sys.executable, HERE / "bare_route.py") as (bare_port, bare_pid),
            server(*command) as (port, pid),
        ):
            load(port, "closed", 1.0)
            check_bits(folder, port)
            of_server: dict[str, list[float]] = {"closed": [], "bare": []}
            runs: dict[str, list[dict[str, Any]]] = {
                name: [] for name in ("open", "reloads", "closed", "bare")
            }
            for _ in range(options.runs):
                runs["open"].append(load(port, "open", options.seconds))
                with publishing(folder):
                    runs["reloads"].append(load(port, "open", options.seconds))
                for name, at, process in (("closed", port, pid), ("bare", bare_port, bare_pid)):
                    before = processor_seconds(process)
                    runs[name].append(load(at, "closed", options.seconds))
                    taken = processor_seconds(process) - before
                    of_server[name].append(1e6 * taken / runs[name][-1]["answers"])
            report("1,000 questions a second", runs["open"])
            report("the same, with a version published every second", runs["reloads"])
            report("32 connections, each as fast as it is answered", runs["closed"])
            print(
                f"  the server's processor time for an answer: {summary(of_server['closed'], 'us')}"
            )
            report("a bare route of uvicorn, in turn with these", runs["bare"])
            print(
                f"  the server's processor time for an answer: {summary(of_server['bare'], 'us')}"
            )
            memory = resident_mb(pid)
            print(f"resident: {memory['VmRSS']:.0f} MB, at most {memory['VmHWM']:.0f} MB")
    print(f"load average at the end: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
