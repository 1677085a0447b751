"""Builds the wheel and the source archive into dist/, and checks them.

    python tools/dist.py --extras recommend,server,authority,client,lab
    python tools/dist.py                     # builds, and looks at the files only

Every extra gets a fresh environment with the pinned versions, which needs a package index. There
`fedrec --version` answers, `fedrec doctor` finds nothing wrong, and a command of that extra works:
a recommendation from a run's folder, or the demo. Without a network nothing else is needed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fedrec

ROOT = Path(__file__).resolve().parent.parent
DEMO = ("demo", "--synthetic", "--protection", "bfv", "--rounds", "2", "--no-second-act")
WORKS = {
    "recommend": ("recommend", "RUN", "--user", "anna"),
    "server": ("coordinator", "run", "--help"),
    "authority": ("keys", "authority", "run", "--help"),
    "client": ("client", "run", "--help"),
    "lab": (*DEMO, "--no-compare", "--runs", "runs"),
}
"""A command for each extra that is tried. RUN is replaced by a run's folder."""
WITHOUT_TORCH = ("recommend", "server", "authority")


def run(*words: str | Path, into: Path | None = None) -> str:
    """Run a program in a folder and return what it printed. Stop if it fails."""
    done = subprocess.run(words, cwd=into or ROOT, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        print(done.stdout)
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}.")
    return done.stdout


def build(into: Path) -> Path:
    """Build both archives into an empty folder, let twine check them, and return the wheel."""
    shutil.rmtree(into, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-d", into, "-t", "sdist", "-t", "wheel")
    files = sorted(into.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for file in files:
        print(f"{file.name}: {file.stat().st_size:,} bytes")
    (wheel,) = into.glob(f"fedrec-{fedrec.__version__}-*.whl")
    return wheel


def a_run(folder: Path) -> Path:
    """Make a run's folder with a model of two users."""
    from types import MappingProxyType

    import numpy as np

    from fedrec.data import Catalogue
    from fedrec.ids import RoundId, UserId
    from fedrec.model.state import PrivateState, SharedState
    from fedrec.plan.schema import Plan
    from fedrec.recommender import ModelFile, Recommender, UsersFile

    catalogue = Catalogue.of(["a", "b", "c"])
    plan = Plan.model_validate({"algorithm": {"dim": 2}, "update": {"structure": "dense"}})
    table = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    model = ModelFile(
        plan=plan,
        catalogue_fingerprint=catalogue.fingerprint(),
        round=RoundId(1),
        shared=SharedState(MappingProxyType({"item_embedding": table})),
    )
    users = UsersFile(
        user_ids=(UserId("anna"), UserId("ben")),
        private=PrivateState.of({"user_embedding": np.eye(2, dtype=np.float32)}),
        seen_indptr=np.array([0, 1, 1]),
        seen_items=np.array([0]),
    )
    Recommender(model, catalogue, users).save(folder)
    return folder


def check(extra: str, wheel: Path) -> None:
    """Install the wheel with an extra into a fresh environment, and try it there."""
    with tempfile.TemporaryDirectory(prefix=f"fedrec-{extra}-") as name:
        folder = Path(name)
        environment = folder / "environment"
        run(sys.executable, "-m", "venv", environment)
        python, command = environment / "bin/python", environment / "bin/fedrec"
        pinned = ("-c", ROOT / "constraints.txt")
        run(python, "-m", "pip", "install", "-q", *pinned, f"{wheel}[{extra}]")
        version = run(command, "--version", into=folder).strip()
        if fedrec.__version__ not in version:
            sys.exit(f"fedrec --version prints {version!r}, expected {fedrec.__version__}.")
        run(command, "doctor", into=folder)
        words = [str(a_run(folder / "run")) if word == "RUN" else word for word in WORKS[extra]]
        run(command, *words, into=folder)
        if extra in WITHOUT_TORCH and [*environment.glob("lib/*/site-packages/torch")]:
            sys.exit(f"fedrec[{extra}] brought torch.")
        size = sum(file.stat().st_size for file in environment.rglob("*") if file.is_file())
        print(f"fedrec[{extra}]: works, {size / 1e6:,.0f} MB")


def main() -> None:
    """Build, then try the named extras."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extras", default="", help=f"some of {', '.join(WORKS)}")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="replaces this folder")
    asked = parser.parse_args()
    wheel = build(asked.into.resolve())
    for extra in filter(None, asked.extras.split(",")):
        check(extra, wheel)


if __name__ == "__main__":
    main()
