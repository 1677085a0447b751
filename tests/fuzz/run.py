"""Feeds one parser with what atheris makes of its seeds, or with the bytes of one file.

    python -m fuzz.run TARGET --seconds 600 --crashes FOLDER
    python -m fuzz.run TARGET --file CRASH

from the folder `tests`. What a parser raises beside `FedrecError` ends the process; the input is
kept in the folder of crashes, and the command that replays it is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shlex
import sys
import tempfile
from pathlib import Path

from fedrec.errors import FedrecError

INSTRUMENTED = [
    "fedrec.plan",
    "fedrec.settings",
    "fedrec.data",
    "fedrec.identity",
    "fedrec.model",
    "fedrec.protection",
    "fedrec.wire",
    "fedrec_authority",
    "fedrec_client",
    "fedrec_server",
]
"""Whose branches guide atheris; numba compiles others, which must stay as they are."""
MEGABYTES = 4096


def main() -> None:
    """Fuzz or replay one target."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("target")
    options.add_argument("--seconds", type=int, default=600)
    options.add_argument("--crashes", type=Path, default=Path("fuzz-crashes"))
    options.add_argument("--file", type=Path)
    chosen = options.parse_args()
    if chosen.file is None:
        fuzz(chosen.target, chosen.seconds, chosen.crashes)
    else:
        print("accepted" if read(chosen.target, chosen.file.read_bytes()) else "refused")


def read(name: str, data: bytes) -> bool:
    """Tell whether a parser takes bytes; whatever it may not raise, rises."""
    from fuzz.targets import target

    try:
        target(name).read(data)
    except FedrecError:
        return False
    return True


def fuzz(name: str, seconds: int, crashes: Path) -> None:
    """Fuzz a parser for some time; returns only by ending the process."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.mutations import mutated
        from fuzz.targets import target
    crashes.mkdir(parents=True, exist_ok=True)
    chosen = target(name)

    def one(data: bytes) -> None:
        try:
            chosen.read(data)
        except FedrecError:
            pass
        except BaseException:
            keep(name, data, crashes)
            raise

    def other(data: bytes, most: int, seed: int) -> bytes:
        # Half of the time in the ways that documents are damaged, else blindly.
        if seed % 2:
            return mutated(random.Random(seed), (data, *chosen.seeds))[:most]
        return bytes(atheris.Mutate(data, most))

    # Left to the system: the process ends inside of `Fuzz`.
    corpus = Path(tempfile.mkdtemp(prefix="fedrec-corpus-"))
    for number, seed in enumerate(chosen.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    longest = 2 * max(len(seed) for seed in chosen.seeds) + 4096
    limits = [f"-max_total_time={seconds}", f"-max_len={longest}", f"-rss_limit_mb={MEGABYTES}"]
    artifacts = f"-artifact_prefix={crashes.resolve()}{os.sep}{name.replace(' ', '-')}-"
    atheris.Setup(
        [sys.argv[0], str(corpus), *limits, artifacts, "-timeout=60"], one, custom_mutator=other
    )
    atheris.Fuzz()


def keep(name: str, data: bytes, crashes: Path) -> None:
    """Keep what a parser fell over, and say how it is replayed."""
    path = (crashes / f"{name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:12]}").resolve()
    path.write_bytes(data)
    print(f"replay: python -m fuzz.run {shlex.quote(name)} --file {shlex.quote(str(path))}")


if __name__ == "__main__":
    main()
