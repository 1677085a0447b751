"""Programs of Debian that only tests need."""

from __future__ import annotations

import os
import shutil
import subprocess

SECONDS = 300


def install(package: str, *programs: str) -> None:
    """Install a package where a program is missing; it takes root, and fails without."""
    if all(shutil.which(program) for program in programs):
        return
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    wanted = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    for command in (["apt-get", "update", "-qq"], wanted):
        subprocess.run(command, env=quiet, check=True, capture_output=True, timeout=SECONDS)
