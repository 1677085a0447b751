"""`make setup` chooses a Python that works."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
WORKS = "exit 0"
FAILS = 'echo "python: command not found" >&2; exit 127'
"""What a version manager's shim does for a version that is not active."""


def make(folder: Path, *arguments: str, **pythons: str) -> subprocess.CompletedProcess[str]:
    """Run `make setup` up to its first real step, with only these Pythons to be found."""
    for tool in ("make", "sh", "touch", "true"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    for name, script in pythons.items():
        path = folder / name.replace("_", ".")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return subprocess.run(
        ["make", "-f", str(MAKEFILE), "setup", f"VENV={folder / 'venv'}", *arguments],
        cwd=MAKEFILE.parent, env={"PATH": str(folder)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3_11": WORKS, "python3_13": WORKS, "python3_14": WORKS}, "python3.14"),
        ({"python3_11": WORKS, "python3_12": WORKS, "python3_13": FAILS}, "python3.12"),
        ({"python3_11": WORKS, "python3_12": FAILS}, "python3.11"),
    ],
    ids=["all work", "the newest is a shim", "only the oldest works"],
)
def test_the_newest_that_works(tmp_path: Path, pythons: dict[str, str], chosen: str) -> None:
    seen = make(tmp_path, "--dry-run", **pythons).stdout
    assert f'"{chosen}" -m venv' in seen


def test_a_given_one_is_taken(tmp_path: Path) -> None:
    seen = make(tmp_path, "--dry-run", "PYTHON=mine", mine=WORKS, python3_13=WORKS).stdout
    assert '"mine" -m venv' in seen


def test_where_none_works_it_says_so(tmp_path: Path) -> None:
    done = make(tmp_path, python3_13=FAILS)
    assert done.returncode
    assert "No python3.14, python3.13, python3.12 or python3.11 was found that works" in done.stderr
    assert "PYTHON=/path/to/python" in done.stderr


def test_a_given_one_that_does_not_fit_is_named(tmp_path: Path) -> None:
    done = make(tmp_path, "PYTHON=old", old="exit 1", python3_13=WORKS)
    assert done.returncode
    assert "old does not run, or is no Python 3.11, 3.12, 3.13 or 3.14." in done.stderr
    assert not os.path.exists(tmp_path / "venv")
