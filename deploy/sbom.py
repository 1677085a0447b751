"""Adds Python and this system's Debian packages to a bill of materials in CycloneDX's JSON.

`python3 sbom.py FILE` rewrites FILE, which already lists the Python packages of an image.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

FIELDS = "${db:Status-Status} ${Package} ${Version} ${Architecture}\\n"


def main() -> None:
    """Rewrite the file with everything in it."""
    path = Path(sys.argv[1])
    bill = json.loads(path.read_text(encoding="utf-8"))
    version = platform.python_version()
    found = [("python", version, f"pkg:generic/python@{version}")]
    shown = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={FIELDS}"],
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    for line in shown.splitlines():
        status, name, version, architecture = line.split(" ")
        if status == "installed":
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
            found.append((name, version, purl))
    bill["components"] += [
        {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        for name, version, purl in found
    ]
    path.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
