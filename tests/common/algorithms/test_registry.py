"""Algorithms of installed packages: what is found, and what is refused."""

import sys

import pytest
from pydantic import ValidationError
from world.plans import plan_of

from fedrec.algorithms import ALGORITHMS, FedMF
from fedrec.algorithms.registry import Registry
from fedrec.errors import PlanMismatch, SettingsError
from fedrec.plan.agreement import plan_from_json, plan_to_json
from fedrec.plan.schema import Plan

MODULE = """
from typing import Literal
from fedrec.algorithms import AlgorithmSettings, ExactAlgorithm

class NearestSettings(AlgorithmSettings):
    name: Literal["nearest"] = "nearest"

class Nearest(ExactAlgorithm):
    settings_type = NearestSettings
    parameters = ()

    def fit(self, chunk, start, private, sums):
        raise NotImplementedError

NOTHING = 3
"""
BEFORE_ABOUT = (
    MODULE
    + """
Nearest.exposed_in_the_clear = "what each user holds"
"""
)
NEITHER = MODULE.replace("ExactAlgorithm", "Algorithm")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with one module and one entry point, as pip would leave it."""

    def put(module, entry_point, source=MODULE):
        folder = tmp_path / "a_package-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[fedrec.algorithms]\n{entry_point}\n")
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


def test_an_installed_algorithm_comes_after_fedrecs_own(install):
    install("package_with_nearest", "nearest = package_with_nearest:Nearest")
    found = Registry({"fedmf": "fedrec.algorithms.fedmf:FedMF"})
    assert "package_with_nearest" not in sys.modules, "imported before anybody looked"
    assert list(found) == ["fedmf", "nearest"]
    assert len(found) == 2
    assert found["nearest"].name == "nearest"
    assert found["fedmf"] is FedMF


@pytest.mark.parametrize(
    ("entry_point", "source", "sentence"),
    [
        ("nearest = broken:Nearest", "import no_such_module", "cannot be imported.*no_such_module"),
        ("nearest = broken:Missing", MODULE, "cannot be imported"),
        ("nearest = broken:NOTHING", MODULE, "not a subclass of TrainedAlgorithm"),
        ("nearest = broken:Nearest", NEITHER, "not a subclass of TrainedAlgorithm or Exact"),
        ("near = broken:Nearest", MODULE, "have the name 'nearest'"),
        ("fedmf = broken:Nearest", MODULE, "that name is taken"),
        ("nearest = broken:Nearest", BEFORE_ABOUT, "sets exposed_in_the_clear"),
        ("nearest = broken:Nearest", f"{MODULE}\nNearest.mean_changes = max\n", "mean_changes"),
        ("nearest = broken:Nearest", f"{MODULE}\nNearest.first_scores = max\n", "first_scores"),
        ("nearest = broken:Nearest", f"{MODULE}\nNearest.inner_product = True\n", "inner_product"),
    ],
)
def test_what_is_no_algorithm_is_refused_by_the_packages_name(
    install, entry_point, source, sentence
):
    install("broken", entry_point, source)
    with pytest.raises(SettingsError, match=rf"^a-package .*{sentence}") as caught:
        len(Registry({"fedmf": "fedrec.algorithms.fedmf:FedMF"}))
    assert "a-package" in caught.value.remedy


def test_a_plan_imports_nothing(tmp_path, monkeypatch):
    """Neither a module that could be imported, nor one that names itself like an entry point."""
    (tmp_path / "bait.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    raw = plan_to_json(Plan())
    assert b'"name":"fedmf"' in raw
    for name in ("bait", "bait:Bait", "../bait", "fedmf:FedMF"):
        with pytest.raises(PlanMismatch, match="no algorithm"):
            plan_from_json(raw.replace(b'"name":"fedmf"', f'"name":"{name}"'.encode()))
        with pytest.raises(ValidationError, match="no algorithm"):
            plan_of(algorithm={"name": name})
    assert "bait" not in sys.modules
    assert "bait" not in ALGORITHMS
