"""Which algorithm and which sizes suit data of a shape: rules with thresholds, for `init --auto`.

The thresholds follow from figures in `docs/explanation/which-algorithm.md`. They are where a study
of settings begins, not its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

LARGEST_COST = 1.5
"""`ease` is proposed up to this many times the bytes of `sketch`."""
LONG_HISTORY = 40.0
"""Interactions of the mean user, in rows that are trained, from which `fedals` is proposed. On
MovieLens 100K and 1M, which are above it, `fedals` needs fewer bytes than `sketch` that is as good.
On FilmTrust and Amazon Video, which are below it, `sketch` is as good or better."""
_ROWS_PER_DIRECTION = 4
_DIRECTIONS = (64, 1024)
_ROWS_PER_DIMENSION = 32
_DIMENSIONS = (64, 256)
_LONG_HISTORY_VALUES = {"algorithm.alpha": 1.0, "algorithm.regularisation": 10.0}
"""fedals on such data. Validation prefers these values on MovieLens 100K and 1M."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShape:
    """The size of a data set.

    Attributes:
        n_rows: items with enough users to be trained.
        n_trained: interactions with these items.
    """

    n_users: int
    n_items: int
    n_rows: int
    n_trained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An algorithm for data.

    Attributes:
        values: settings in place of the starting ones, by dotted key.
        reasons: sentences.
    """

    algorithm: str
    values: Mapping[str, float]
    reasons: tuple[str, ...]


def propose(
    shape: DataShape,
    bytes_of: Callable[[str, Mapping[str, int]], int],
    *,
    accepts_exposure: bool,
) -> Proposal:
    """Return the algorithm that suits data of this shape, with its sizes and the reasons.

    Args:
        bytes_of: returns the bytes of a whole run with an algorithm and settings.
        accepts_exposure: whether clients may know all pair counts, as `ease` needs.
    """
    history = shape.n_trained / max(1, shape.n_users)
    reasons = [
        f"{shape.n_rows} of {shape.n_items} items have enough users to be trained, and the mean "
        f"user has {history:.1f} interactions with them."
    ]
    directions = {"algorithm.dim": _size(shape.n_rows, _ROWS_PER_DIRECTION, _DIRECTIONS)}
    cost = bytes_of("ease", {}) / bytes_of("sketch", directions)
    priced = (
        f"A run of ease costs {cost:.2f} times the bytes of sketch with "
        f"{directions['algorithm.dim']} directions. Up to {LARGEST_COST:g} times is worth it."
    )
    if cost <= LARGEST_COST and accepts_exposure:
        return Proposal(algorithm="ease", values={}, reasons=(*reasons, priced))
    if cost <= LARGEST_COST:
        priced += (
            " But ease discloses to every client how many users hold each pair of items, which "
            "--accept-exposure would accept."
        )
    # Few rows make a smaller model, but don't make ease a worse choice.
    few = f", and at most the {shape.n_rows} rows" if shape.n_rows < _DIRECTIONS[0] else ""
    most = 1 << (shape.n_rows.bit_length() - 1)
    if history >= LONG_HISTORY:
        dim = min(_size(shape.n_rows, _ROWS_PER_DIMENSION, _DIMENSIONS), most)
        chosen = (
            "In fedrec's measurements, fedals needed fewer bytes than sketch that was as good, on "
            f"data with {LONG_HISTORY:g} interactions or more for the mean user."
        )
        sized = (
            "alpha is 1 and regularisation 10, which were best on such data. "
            f"dim is {dim}: a thirty-second of the rows, from 64 to 256{few}."
        )
        values = {"algorithm.dim": dim, **_LONG_HISTORY_VALUES}
        reasons = [*reasons, priced, chosen, sized]
        return Proposal(algorithm="fedals", values=values, reasons=tuple(reasons))
    chosen = (
        "In fedrec's measurements, sketch was as good as fedals or better on data with "
        f"fewer than {LONG_HISTORY:g} interactions for the mean user."
    )
    dim = min(directions["algorithm.dim"], most)
    sized = f"dim is {dim}: a quarter of the rows, from 64 to 1024{few}."
    values, reasons = {"algorithm.dim": dim}, [*reasons, priced, chosen, sized]
    return Proposal(algorithm="sketch", values=values, reasons=tuple(reasons))


def _size(n_rows: int, rows_each: int, ends: tuple[int, int]) -> int:
    """Return the next power of two from a share of the rows downwards, between two ends."""
    share = max(1, n_rows // rows_each)
    return min(max(1 << (share.bit_length() - 1), ends[0]), ends[1])
