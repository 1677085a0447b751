"""The engine, the images of this tree, and the data: made once."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from containers.engine import ROOT, Engine, call

from fedrec.data import FetchedDataset

TARGETS = ("coordinator", "authority", "client", "setup")


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Find what runs containers here; a machine without it fails."""
    return Engine.find()


@pytest.fixture(scope="session")
def images(engine: Engine) -> Mapping[str, str]:
    """Build every image that deploy/compose.yaml names, of this tree's wheel; by target."""
    call((sys.executable, "tools/dist.py"), environment=os.environ)
    tags = {target: f"fedrec-{target}" for target in TARGETS}
    index = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
    for target, tag in tags.items():
        more = ("--build-arg", f"TORCH_INDEX={index}") if target == "client" else ()
        engine.build("deploy/Dockerfile", tag, "--target", target, *more)
    return tags


@pytest.fixture(scope="session")
def cache(ml_100k: FetchedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with MovieLens-100K that every user can read, as FEDREC_CACHE."""
    folder = tmp_path_factory.mktemp("cache")
    source = ml_100k.interactions_path.parent
    shutil.copytree(source, folder / source.name)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return the settings that deploy/ ships, and others under CKKS; by protection."""
    shipped = ROOT / "deploy" / "federation.toml"
    text = shipped.read_text(encoding="utf-8")
    other = tmp_path_factory.mktemp("settings") / "ckks.toml"
    for old, new in (("bfv", "ckks"), ("fedals", "fedmf"), ("dense", "colr")):
        assert text.count(f'"{old}"') == 1
        text = text.replace(f'"{old}"', f'"{new}"')
    other.write_text(text, encoding="utf-8")
    other.chmod(0o644)
    return {"bfv": shipped, "ckks": other}


@pytest.fixture(scope="session")
def prometheus(engine: Engine) -> str:
    """Return PROMETHEUS_IMAGE, or an image with Debian's Prometheus, where no registry is near."""
    chosen = os.environ.get("PROMETHEUS_IMAGE")
    if chosen:
        return chosen
    engine.build("tests/containers/prometheus.Dockerfile", "fedrec-test-prometheus")
    return "fedrec-test-prometheus"
