"""Contributions depend on the user alone: here, as on other processors, and whatever is cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import invariance
from conformance.invariance import CASES, DIMS, SHAPES, differences, plan_of_case
from conformance.shape_dependence import ShapeDependence

from fedrec.plan.algorithm import accelerator_of

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[2]
LARGE = [case for case in CASES if f"-{DIMS[0]}" not in case]
"""One length of vectors for each algorithm: a process of its own costs some seconds."""
DENSE = [case for case in LARGE if "-dense-" in case]
"""Update structures multiply by the same function that the dense case is tried with."""
COMPILED = [case for case in DENSE if accelerator_of(plan_of_case(case)) is not None]
"""What numba compiles; torch trains the others."""
SMALL = [case for case in CASES if f"-dense-{DIMS[0]}" in case or "-dense-0" in case]
SMALL.append(f"fedmf-colr-{DIMS[0]}-trainer")
"""Matrices that do not end with a cache line, and the product that low-rank rows are made of."""
ON_TWO = ("--threads", "2")


def in_make_test(case: str) -> Any:
    """Return a case as a parameter; of the small length only fedrec's own compiled loops.

    Torch's kernels for it, and other structures, are for the long tests.
    """
    usual = case in (SHAPES, *DENSE)
    own = "-dense-" in case and accelerator_of(plan_of_case(case)) is not None
    return case if usual or own else pytest.param(case, marks=pytest.mark.long)


@pytest.mark.parametrize("case", [in_make_test(case) for case in (SHAPES, *CASES)])
def test_a_users_contribution_is_the_same_in_every_company(case):
    assert differences(case) == []


@pytest.mark.parametrize(
    "case",
    [
        SHAPES,
        *(case if case in SMALL else pytest.param(case, marks=pytest.mark.long) for case in CASES),
    ],
)
def test_it_is_also_where_shapes_decide_about_bits(case):
    """On every processor, whatever kernels its library would choose, and wherever users are."""
    with ShapeDependence():
        # Threads are part of what decides there.
        assert differences(case, [2]) == []


def test_products_that_follow_from_the_company_are_found(monkeypatch):
    monkeypatch.setattr(invariance, "product_of_blocks", torch.matmul)
    with ShapeDependence() as library:
        found = differences(SHAPES)
    assert library.seen
    # Matrix by vector, and matrix by matrix; 200 rows are those that all are compared with.
    assert "1 x 8 by 8 x 1, 1 threads" in found
    assert "17 x 32 by 32 x 200, 2 threads" in found
    assert not any(line.startswith("200 x") for line in found)


def run(*arguments: str, **environment: str) -> dict[str, Any]:
    """Return what the suite prints in a process of its own."""
    own = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "2", **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "conformance.invariance", *arguments],
        env=own, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def usual():
    """What a process is that nothing is set for."""
    return run()


def moved(usual: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the probes, and the parts of the arithmetic, that are not the usual ones."""
    wrong = [name for name, digest in usual["probes"].items() if found["probes"][name] != digest]
    own, others = usual["arithmetic"], found["arithmetic"]
    # That the variable is set shows nothing.
    return wrong + [name for name in own if name != "settings" and own[name] != others[name]]


@pytest.mark.parametrize(
    ("name", "value", "cases"),
    [
        # What is compiled, groups on two threads and each user alone on one; in the long tests
        # every library with everything, groups on one thread too.
        pytest.param("NUMBA_CPU_NAME", "generic", [*ON_TWO, *COMPILED], marks=pytest.mark.long),
        pytest.param("ATEN_CPU_CAPABILITY", "default", LARGE, marks=pytest.mark.long),
        pytest.param("NUMBA_CPU_NAME", "generic", LARGE, marks=pytest.mark.long),
        pytest.param("MKL_CBWR", "COMPATIBLE", LARGE, marks=pytest.mark.long),
        pytest.param("OPENBLAS_CORETYPE", "Prescott", LARGE, marks=pytest.mark.long),
    ],
)
def test_as_on_another_processor(usual, name, value, cases):
    """Compared within the setting: what differs from the usual process is as good.

    The next version of a model is that of the usual process, bit by bit.
    """
    found = run(*cases, SHAPES, **{name: value})
    if not moved(usual, found):
        pytest.skip(f"{name}={value} moves no probe on this machine, so it would show nothing.")
    assert found["differences"] == []
    assert found["applied"] == usual["applied"]
