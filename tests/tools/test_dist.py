"""What is published: the archives, one version everywhere, and a workflow without a token."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import fedrec

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere():
    cited = yaml.safe_load(text_of("CITATION.cff"))
    wheels = re.findall(r"fedrec-([\w.]+)-py3-none-any\.whl", text_of("docs/how-to/install.md"))
    found = {PROJECT["version"], cited["version"], *wheels}
    assert found == {fedrec.__version__}
    assert wheels
    assert cited["license"] == PROJECT["license"]


def test_every_extra_for_users_is_on_the_page():
    page = text_of("docs/how-to/install.md")
    rows = set(re.findall(r"(?m)^\| `([a-z]+)` \|", page))
    assert rows == PROJECT["optional-dependencies"].keys() - {"dev", "sim"}


def test_only_the_job_that_publishes_may_identify_itself():
    workflow = yaml.safe_load(text_of(".github/workflows/release.yml"))
    assert workflow["permissions"] == {"contents": "read"}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "permissions" not in build
    assert (publish["needs"], publish["environment"]) == ("build", "release")
    assert publish["permissions"] == {"id-token": "write"}
    # It runs nothing of the repository.
    assert all("run" not in step for step in publish["steps"])
    assert {"run": "make dist"} in build["steps"]
    assert "secrets." not in text_of(".github/workflows/release.yml")


def test_every_extra_that_a_party_needs_is_tried():
    spec = importlib.util.spec_from_file_location("dist_tool", ROOT / "tools/dist.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    default = re.search(r"(?m)^EXTRAS \?= (\S+)$", text_of("Makefile"))[1]
    assert default.split(",") == list(tool.WORKS)
    assert set(tool.WITHOUT_TORCH) < tool.WORKS.keys()


@pytest.mark.slow
def test_the_archives_are_built_and_hold_the_product(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "tools/dist.py", "--into", tmp_path / "dist"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert f"{wheel.name}: " in done.stdout
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        described = archive.read(metadata).decode()
    packages = {name.partition("/")[0] for name in names if name.endswith("/__init__.py")}
    assert packages == {
        "fedrec", "fedrec_server", "fedrec_authority", "fedrec_client", "fedrec_lab",
    }  # fmt: skip
    assert all(f"{package}/py.typed" in names for package in packages)
    assert "Provides-Extra: recommend" in described
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]
