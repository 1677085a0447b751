"""Which algorithm and sizes are proposed for data of a shape, and the reasons."""

from __future__ import annotations

import pytest

from fedrec.algorithms.proposal import DataShape, propose


def shape(n_rows: int, history: int) -> DataShape:
    return DataShape(n_users=10, n_items=n_rows + 5, n_rows=n_rows, n_trained=10 * history)


def priced(ratio: float):
    """Return prices of ease and sketch with this ratio."""
    return lambda algorithm, values: {"ease": round(1000 * ratio), "sketch": 1000}[algorithm]


@pytest.mark.parametrize(
    ("ratio", "history", "accepts", "algorithm"),
    [
        (1.5, 5, True, "ease"),
        (1.5, 100, True, "ease"),
        (1.501, 5, True, "sketch"),
        (1.0, 5, False, "sketch"),
        (1.0, 40, False, "fedals"),
        (2.0, 39, True, "sketch"),
    ],
)
def test_every_threshold(ratio, history, accepts, algorithm):
    found = propose(shape(1000, history), priced(ratio), accepts_exposure=accepts)
    assert found.algorithm == algorithm
    assert f"{ratio:.2f} times" in " ".join(found.reasons)
    assert ("--accept-exposure" in " ".join(found.reasons)) == (ratio <= 1.5 and not accepts)


@pytest.mark.parametrize(
    ("n_rows", "sketch", "fedals"),
    [(10, 8, 8), (1143, 256, 64), (3234, 512, 64), (7000, 1024, 128), (10**6, 1024, 256)],
)
def test_sizes_follow_from_the_rows(n_rows, sketch, fedals):
    asked = []

    def bytes_of(algorithm, values):
        asked.append((algorithm, values))
        return 10 if algorithm == "ease" else 1

    for history, size in ((5, sketch), (50, fedals)):
        found = propose(shape(n_rows, history), bytes_of, accepts_exposure=True)
        best = {"algorithm.alpha": 1.0, "algorithm.regularisation": 10.0}
        assert found.values == {"algorithm.dim": size, **(best if history == 50 else {})}
        assert str(size) in found.reasons[-1]
        assert ("at most the 10 rows" in found.reasons[-1]) is (n_rows == 10)
    # ease is compared with 64 directions or more, however few the rows are.
    assert ("sketch", {"algorithm.dim": max(64, sketch)}) in asked
