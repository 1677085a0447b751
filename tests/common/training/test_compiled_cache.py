"""Compiled code gives the same bits new, out of numba's cache, and with a part of the cache gone.

A function that was just compiled may be merged into its caller; one from the cache is only linked.
Where the compiler may choose the order of a sum, the two differ in the last bits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from conformance.invariance import CASES, DIMS, plan_of_case

from fedrec.plan.algorithm import accelerator_of

TESTS = Path(__file__).parents[2]
COMPILED = [
    case
    for case in CASES
    if not case.endswith(f"-{DIMS[0]}") and accelerator_of(plan_of_case(case)) is not None
]

pytestmark = [pytest.mark.slow, pytest.mark.long]


def digests(cache: Path) -> Mapping[str, str]:
    """Return the bits of every case, trained in a process of its own with this cache."""
    environment = {"PYTHONPATH": str(TESTS), "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "conformance.invariance", "--digests", *COMPILED],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: Mapping[str, str] = json.loads(done.stdout)
    assert set(found) == set(COMPILED)
    return found


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A cache that was empty, and what was trained while it was filled."""
    cache = tmp_path_factory.mktemp("compiled")
    return cache, digests(cache)


def entries(cache: Path) -> Mapping[str, Sequence[Path]]:
    """Return each compiled module's functions in the order in which they were done.

    A function that is called is done before the one that calls it.
    """
    found: dict[str, list[Path]] = {}
    for path in sorted(cache.rglob("*.nbi"), key=lambda path: path.stat().st_mtime_ns):
        found.setdefault(path.name.partition(".")[0], []).append(path)
    return found


def test_from_the_cache(cold):
    cache, wanted = cold
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbi")}
    assert before, "nothing was compiled"
    assert digests(cache) == wanted
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbi")} == before


@pytest.mark.parametrize(
    "chosen",
    [
        # The function that calls the others takes longest to compile again.
        lambda paths: paths[-1],
        lambda paths: paths[0],
        lambda paths: paths[len(paths) // 2],
    ],
    ids=["that calls the others", "that is called", "between them"],
)
def test_without_one_function_of_each_module(cold, chosen):
    cache, wanted = cold
    removed = [chosen(paths) for paths in entries(cache).values()]
    for index in removed:
        for path in index.parent.glob(index.name.removesuffix("nbi") + "*"):
            path.unlink()
    assert digests(cache) == wanted
