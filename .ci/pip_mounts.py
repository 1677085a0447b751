"""Prints what a build has to mount so that pip reaches the index as it does on this machine.

`python pip_mounts.py FILE` writes pip's settings to FILE, and prints `-v` arguments for that file,
for certificates, and for folders of packages.
"""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

NAMES = ("cert", "find-links", "index-url", "extra-index-url", "trusted-host")


def main() -> None:
    """Write the file and print the arguments."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        # The environment comes first, and wins.
        found.setdefault(key.rpartition(".")[2], str(ast.literal_eval(value)))
    own = {name: found[name] for name in NAMES if name in found}
    if not own:
        return
    settings = configparser.RawConfigParser()
    settings["global"] = own
    with Path(sys.argv[1]).open("w", encoding="utf-8") as out:
        settings.write(out)
    mounts = {f"{Path(sys.argv[1]).absolute()}:/etc/pip.conf"}
    for word in " ".join(own.values()).split():
        # The pages of an index in a folder point beside it.
        path = Path(word.removeprefix("file://"))
        path = path.parent if word.startswith("file://") else path
        if path.is_absolute() and path.exists():
            mounts.add(f"{path}:{path}")
    print(*(f"-v {mount}:ro" for mount in sorted(mounts)))


if __name__ == "__main__":
    main()
