"""`fedrec client export`: all users' best 100 items to Parquet, the command and what it is made of.

By default a silo of MovieLens-1M's size with times, 6,040 users with 165 of 3,706 items each; with
`--data` that of a file, such as MovieLens-1M without times, whose users may be others.

    python benchmarks/bench_export.py [--runs 5] [--data FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import describe_machine, interleaved, summary
from served_folder import ServedFolder

from fedrec.data.source import read_source
from fedrec.settings.validation import load_settings
from fedrec_client.own_recommender import Wanted, export_recommendations, own_recommender

N_ITEMS, N_USERS, PER_USER = 3706, 6040, 165


def command(folder: ServedFolder, target: Path) -> tuple[float, float]:
    """Return the seconds and the processor's seconds of the whole command."""
    words = [sys.executable, "-m", "fedrec", "client", "export", str(folder.settings_file)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(
        [*words, "--to", str(target), "-n", "100", "--force"], check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    print(describe_machine())
    print(f"load average at the start: {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as place:
        folder = ServedFolder(
            Path(place), n_items=N_ITEMS, n_users=N_USERS, per_user=PER_USER, data=options.data
        )
        folder.publish()
        target, settings = Path(place) / "all.parquet", load_settings(folder.settings_file)
        whole = [command(folder, target) for _ in range(options.runs)]
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        parts = interleaved(
            {
                "once everything is imported": lambda: export_recommendations(
                    own_recommender(settings), target, Wanted(n=100), force=True
                ),
                "of which the data and the model": lambda: own_recommender(settings),
                "of which reading the file": lambda: read_source(settings.data, reader="this"),
            },
            runs=options.runs,
        )
        assert hashlib.sha256(target.read_bytes()).hexdigest() == digest
    print(f"export of {len(folder.users)} users x 100 items, SHA-256 {digest[:16]}")
    print(f"  the whole command: {summary([one[0] for one in whole])}")
    print(f"  the processor's time for it: {summary([one[1] for one in whole])}")
    for name, seconds in parts.items():
        print(f"  {name}: {summary(seconds)}")
    print(f"load average at the end: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
