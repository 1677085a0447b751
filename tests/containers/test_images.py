"""What the images hold and what they do not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from containers.engine import ROOT, Engine

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

PARTIES = ("coordinator", "authority", "client")
PROMISED = re.compile(r"^\|[^|]*\| `fedrec-(\w+)` \| ([\d,]+) MB \|", re.MULTILINE)
"""An image's row in the page on containers, and what it adds to its base."""
OF_A_BUILD = re.compile(
    r"^(PIP_|SSL_|REQUESTS_|CURL_|GIT_|UV_|TORCH_INDEX)|_proxy$|_CA_BUNDLE$|_INDEX(_URL)?$",
    re.IGNORECASE,
)
"""Names of variables that say how this machine reaches a package index."""
Inside = Mapping[str, dict[str, Any]]
LOOK = """
import importlib.metadata, importlib.util, json, os, pathlib, platform, subprocess
root = pathlib.Path("/opt/fedrec")
try:
    pathlib.Path("/written").touch()
    written = True
except OSError:
    written = False
small = [path for path in root.rglob("*") if path.suffix in {".conf", ".cfg", ".json", ".toml"}]
packages = {f"{one.name}=={one.version}" for one in importlib.metadata.distributions()}
shown = ["dpkg-query", "--show", "--showformat=${Package}==${Version}\\n"]
packages |= {*subprocess.run(shown, capture_output=True, text=True).stdout.split()}
packages.add(f"python=={platform.python_version()}")
bill = json.loads((root / "sbom.cdx.json").read_text())
print(json.dumps({
    "packages": sorted(packages),
    "bill": sorted({f"{one['name']}=={one['version']}" for one in bill["components"]}),
    "format": [bill["bomFormat"], bill["specVersion"]],
    "user": os.getuid(),
    "environment": list(os.environ),
    "torch": importlib.util.find_spec("torch") is not None,
    "matplotlib": importlib.util.find_spec("matplotlib") is not None,
    "written": written,
    "told": [path.read_text(errors="replace") for path in small],
}))
"""


@pytest.fixture(scope="module")
def inside(engine: Engine, images: Mapping[str, str]) -> Inside:
    """Look around in a container of each party's image."""
    return {
        party: json.loads(
            engine.alone(images[party], "-c", LOOK, options=("--entrypoint", "python"))
        )
        for party in PARTIES
    }


@pytest.mark.parametrize("party", PARTIES)
def test_it_is_no_larger_than_was_promised(
    engine: Engine, images: Mapping[str, str], party: str
) -> None:
    page = (ROOT / "docs/how-to/deploy-with-containers.md").read_text(encoding="utf-8")
    promised = {name: int(size.replace(",", "")) * 1e6 for name, size in PROMISED.findall(page)}
    (base,) = re.findall(r"(?m)^ARG BASE=(\S+)$", (ROOT / "deploy/Dockerfile").read_text())
    # BuildKit lists no image that it only builds from.
    engine.run("pull", "--quiet", base, check=False)
    added = engine.inspect(images[party], "image")["Size"] - engine.inspect(base, "image")["Size"]
    assert added < 1.05 * promised[party]


@pytest.mark.parametrize("party", PARTIES)
def test_its_bill_of_materials_lists_all_that_is_installed(inside: Inside, party: str) -> None:
    assert inside[party]["format"] == ["CycloneDX", "1.6"]
    assert inside[party]["bill"] == inside[party]["packages"]


@pytest.mark.parametrize("party", PARTIES)
def test_no_container_is_root_and_nothing_can_be_written(inside: Inside, party: str) -> None:
    assert inside[party]["user"] == 10001
    assert not inside[party]["written"]


def test_only_clients_have_torch(inside: Inside) -> None:
    assert {party for party, found in inside.items() if found["torch"]} == {"client"}
    assert not any(found["matplotlib"] for found in inside.values())


@pytest.mark.parametrize("party", PARTIES)
def test_nothing_tells_how_it_was_built(
    engine: Engine, images: Mapping[str, str], inside: Inside, party: str
) -> None:
    found = engine.inspect(images[party], "image")
    names = [entry.partition("=")[0] for entry in found["Config"]["Env"]]
    names += inside[party]["environment"]
    assert [name for name in names if OF_A_BUILD.search(name)] == []
    history = engine.run("history", "--no-trunc", "--format", "{{.CreatedBy}}", images[party])
    seen = "\n".join([json.dumps(found["Config"]), history, *inside[party]["told"]])
    assert [address for address in addresses_of_indexes() if address in seen] == []


def addresses_of_indexes() -> set[str]:
    """Return where pip looks for packages on this machine, unless that is everywhere the same."""
    seen = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    seen += " ".join(value for name, value in os.environ.items() if OF_A_BUILD.search(name))
    found = set(re.findall(r"(?:https?|file)://[^\s'\"]+", seen))
    return {address for address in found if "//pypi.org/" not in address}


def test_compiled_code_is_that_of_this_processor(engine: Engine, images: Mapping[str, str]) -> None:
    """Training in a new container compiles nothing: what it has is what the image has."""
    code = """
import json, pathlib
from fedrec.settings.starter import TUNED
from fedrec.training.learner import Learner
for plan in TUNED.values():
    Learner(plan, 100).warm_up()
def files(folder):
    root = pathlib.Path(folder)
    return sorted(
        (str(path.relative_to(root)), path.stat().st_mtime) for path in root.rglob("*.nb?")
    )
print(json.dumps([files("/opt/fedrec/compiled"), files("/tmp/fedrec/compiled")]))
"""
    brought, used = json.loads(
        engine.alone(images["client"], "-c", code, options=("--entrypoint", "python"))
    )
    assert brought and used == brought
