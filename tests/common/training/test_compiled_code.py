"""No compiled function lets the compiler choose the order of its sums, or the number of threads."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core.dispatcher import Dispatcher

import fedrec
import fedrec_lab

FOLDERS = [Path(package.__file__).parents[1] for package in (fedrec, fedrec_lab)]


def compiled() -> Iterator[tuple[str, Dispatcher]]:
    """Yield every compiled function of the packages by its name."""
    places = [(folder, path) for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
    for folder, path in places:
        if "njit" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            module = importlib.import_module(name)
            for key, value in vars(module).items():
                if isinstance(value, Dispatcher):
                    yield f"{name}.{key}", value


def test_nothing_is_left_to_the_compiler():
    found = dict(compiled())
    assert found, "nothing is compiled: this test has no purpose any more"
    wrong = {
        name: option
        for name, function in found.items()
        for option in ("fastmath", "parallel")
        if function.targetoptions.get(option)
    }
    assert wrong == {}


@pytest.mark.parametrize("fastmath", [True, {"reassoc"}, {"contract"}, False], ids=str)
def test_what_is_asked_for_is_told(fastmath):
    """The options that the test above reads are those that reach the compiler."""

    def total(values):  # type: ignore[no-untyped-def]  # numba derives the types
        found = np.float32(0.0)
        for value in values:
            found += value
        return found

    function = njit(fastmath=fastmath)(total)
    assert function(np.ones(3, dtype=np.float32)) == 3.0
    (code,) = function.inspect_llvm().values()
    sums = [line for line in code.splitlines() if " fadd " in line]
    assert sums
    free = any(word in line for line in sums for word in (" fast ", " reassoc ", " contract "))
    assert free is bool(function.targetoptions.get("fastmath"))
