"""Top-K: the largest values of a change of the item table, the others zero.

A baseline of the CoLR paper (section 5.2): k = ceil(ratio x n_items x dim) values of the largest
magnitude over the flattened table; of equal ones those with the lowest index. The paper's clients
send (index, value) pairs, which name the items that a user touched; here the zeros travel too,
so that the vector has one length and, protected, says nothing. `update.indices` = "clear" is the
paper's: k ciphertexts whose indices anybody reads (`fedrec.protection.packing`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.updates.compressed import Compressed
from fedrec.updates.paper_numbers import PaperNumbers

if TYPE_CHECKING:
    import torch

    from fedrec.updates.settings import UpdateSettings


_LARGEST_DENOMINATOR = 10**9


class TopK(Compressed):
    """Keep the largest `ratio` of all values."""

    name: ClassVar[str] = "topk"
    clear_indices: ClassVar[str] = "the index of every kept value, which names the user's items"
    in_numpy: ClassVar[bool] = True
    """Whether a processor selects in numpy; tests of what devices do set it to False."""

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        # 1/3 is meant by 0.3333333333333333, and 0.1 by the float above it.
        self.ratio = Fraction(settings.ratio).limit_denominator(_LARGEST_DENOMINATOR)
        self.states_indices = settings.indices == "clear"

    @staticmethod
    def warnings(settings: UpdateSettings) -> list[str]:
        """Say what compression does not save where zeros travel along."""
        found = Compressed.warnings(settings)
        return found if settings.indices == "hidden" else found[1:]

    def entries(self, n_items: int) -> int:
        """Return k where indices are clear."""
        return self.n_kept(n_items * self.dim) if self.states_indices else 0

    def n_kept(self, n_values: int) -> int:
        """Return k = ceil(ratio x n_values), at least 1."""
        return max(1, math.ceil(self.ratio * n_values))

    def compress(self, change: NDArray[np.float64], n_items: int) -> NDArray[np.float64]:
        """Return the change without its smaller values."""
        kept = self.n_kept(n_items * self.dim)
        return change if kept >= change.size else _largest(change, kept)

    def compress_each(self, rows: torch.Tensor, n_items: int) -> torch.Tensor:
        """Return every user's change without its smaller values."""
        import torch

        kept, flat = self.n_kept(n_items * self.dim), rows.reshape(len(rows), -1)
        if kept >= flat.shape[1]:
            return rows
        if self.in_numpy and flat.device.type == "cpu":
            # torch selects eight times slower than numpy on a processor.
            values = flat.numpy()
            return torch.from_numpy(np.stack([_largest(row, kept) for row in values])).view_as(rows)
        size = flat.abs()
        least = torch.kthvalue(size, flat.shape[1] - kept + 1, dim=1).values[:, None]
        more, tied = size > least, size == least
        missing = kept - more.sum(1, keepdim=True)
        keep = more | (tied & (torch.cumsum(tied, 1) <= missing)) | torch.isnan(size)
        return torch.where(keep, flat, 0.0).view_as(rows)

    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return 2 k both ways: a value and an index each."""
        size = 2 * self.n_kept(n_items * self.dim)
        return PaperNumbers(upload=size, download=size, payload=size)


def _largest(values: NDArray[Any], kept: int) -> NDArray[Any]:
    """Return the values with all but the `kept` largest magnitudes, of more than those, zero."""
    size = np.abs(values).reshape(-1)
    # Values that are not numbers sort last, and stay: the sums tell of them.
    least = np.partition(size, size.size - kept)[size.size - kept]
    keep = ~(size <= least)
    ties = np.nonzero(size == least)[0]
    keep[ties[: kept - int(keep.sum())]] = True
    return np.where(keep.reshape(values.shape), values, values.dtype.type(0))
