"""A virtual environment for Flower, which wants other versions of some packages than fedrec."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path


def environment(folder: Path, *wanted: str) -> Path:
    """Make an environment in a folder and install packages into it; return its Python.

    Args:
        wanted: arguments of `pip install`.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *quiet, *wanted], check=True)
    return python


def installed(folder: Path, package: str) -> str:
    """Return the version of a package in an environment; empty where either is missing."""
    python = folder / "bin" / "python"
    if not python.exists():
        return ""
    program = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip()
