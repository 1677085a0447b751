"""Compression after training: full rows are trained, and the update is made smaller.

As in the CoLR paper's baselines (section 5.2), both ways: a user's change is compressed before it
is clipped, rounded and summed. Every party that applies the mean change compresses it again, so all
parties continue from the same Q. Nothing is carried over to the next round.

`update.compress` = "user" is the papers' choice (where a client is a user), and sums do not depend
on how users are grouped. With "client", a silo compresses the sum of its users' changes, and the
loss depends on the grouping.

SVD keeps the nearest matrix of rank r to a change of the item table: A = U S V^T, of which the r =
`update.rank` largest triples are kept. U_r S_r V_r^T is A V_r V_r^T, with V from the eigenvectors
of the small matrix A^T A (dim x dim). No decomposition is as large as the catalogue.

Top-K keeps the k = ceil(ratio x n_items x dim) values of the largest magnitude over the flattened
table. Among equal ones it keeps those with the lowest index. The paper's clients send (index,
value) pairs, which name the items that a user touched. Here the zeros travel too, so the vector has
a fixed length and, when protected, reveals nothing. `update.indices` = "clear" is the paper's
choice: k ciphertexts with public indices (`fedrec.protection.packing`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.exact_linalg import product, symmetric_eigen
from fedrec.updates.colr import CoLR
from fedrec.updates.update import Dense, PaperNumbers

if TYPE_CHECKING:
    import torch

    from fedrec.updates.update import UpdateSettings


class Compressed(Dense):
    """A dense update that is compressed.

    Attributes:
        by: whether a user's change or a client's change is compressed before it is sent.
    """

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        self.by = settings.compress

    @staticmethod
    def warnings(settings: UpdateSettings) -> list[str]:
        """Warn that compression saves no bytes, and about the cost of `compress` = "client"."""
        found = [
            f'update.structure = "{settings.structure}" compresses what is learned, not what is '
            'sent: the vector is as long as under "dense". Use "colr" for smaller messages.'
        ]
        if settings.compress == "client":
            found.append(
                'update.compress = "client": each client compresses the sum of its '
                "users' changes, so results depend on how users are grouped into clients."
            )
        return found

    @abstractmethod
    def compress(self, change: NDArray[np.float64], n_items: int) -> NDArray[np.float64]:
        """Return a compressed change, the same bits on every machine.

        Args:
            change: the rows of active items (n_active, dim). Other rows are zero.
            n_items: rows of the whole table.
        """

    @abstractmethod
    def compress_each(self, rows: torch.Tensor, n_items: int) -> torch.Tensor:
        """Return users' compressed changes. A user's result does not depend on the others.

        Args:
            rows: float32 (n_users, n_rows, dim), the rows that a user touched in ascending order of
                items, followed by zeros.
            n_items: rows of the whole table.
        """


_ROWS, _COLUMNS, _USERS = 64, 8, 8
"""Products have these sizes for every user: rows, columns, and users of a block."""


class SVD(Compressed):
    """Keep the `rank` largest singular triples."""

    name: ClassVar[str] = "svd"

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        self.rank = settings.rank

    @staticmethod
    def problem(settings: UpdateSettings, dim: int) -> str:
        """Return why the rank cannot work with `dim`, or an empty string: CoLR's rule."""
        return CoLR.problem(settings, dim)

    def compress(self, change: NDArray[np.float64], n_items: int) -> NDArray[np.float64]:
        """Return A V_r V_r^T, by Jacobi rotations and sums in a fixed order."""
        values, vectors = symmetric_eigen(product(change.T, change))
        kept = vectors[:, np.argsort(-values, kind="stable")[: self.rank]]
        return product(change, product(kept, kept.T))

    def compress_each(self, rows: torch.Tensor, n_items: int) -> torch.Tensor:
        """Return A V_r V_r^T of every user, in float64 between two roundings to float32."""
        import torch

        from fedrec.tensor_products import batched_product

        n_users, n_rows, dim = rows.shape
        # In blocks of rows, so the rows of zeros after a user's own change no bit of it.
        size = (n_users, _padded(n_rows, _ROWS), _padded(dim, _COLUMNS))
        tables = rows.new_zeros(size, dtype=torch.float64)
        tables[:n_users, :n_rows, :dim] = rows
        blocks = torch.split(tables, _ROWS, dim=1)
        gram = tables.new_zeros((size[0], size[2], size[2]))
        for block in blocks:
            gram += batched_product(block.transpose(1, 2), block, at_once=_USERS)
        # The sums report training that diverged. The decomposition would not return.
        finite = torch.isfinite(gram).all(2).all(1)[:, None, None]
        vectors = torch.linalg.eigh(torch.where(finite, gram, 0.0)).eigenvectors
        vectors[:, :, : vectors.shape[2] - self.rank] = 0.0
        near = batched_product(vectors, vectors.transpose(1, 2), at_once=_USERS)
        kept = torch.cat([batched_product(block, near, at_once=_USERS) for block in blocks], dim=1)
        return torch.where(finite, kept, torch.nan)[:n_users, :n_rows, :dim].to(rows.dtype)

    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return rank x n_items both ways, as the paper's times imply. U, S and V are more."""
        size = self.rank * n_items
        payload = self.rank * (n_items + self.dim + 1)
        return PaperNumbers(upload=size, download=size, payload=payload)


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


_LARGEST_DENOMINATOR = 10**9


class TopK(Compressed):
    """Keep the largest `ratio` of all values."""

    name: ClassVar[str] = "topk"
    clear_indices: ClassVar[str] = "the index of every kept value, which names the user's items"
    in_numpy: ClassVar[bool] = True
    """Whether a processor selects in numpy. Tests of the device code set it to False."""

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        # 0.3333333333333333 means 1/3, and 0.1 means the float above it.
        self.ratio = Fraction(settings.ratio).limit_denominator(_LARGEST_DENOMINATOR)
        self.states_indices = settings.indices == "clear"

    @staticmethod
    def warnings(settings: UpdateSettings) -> list[str]:
        """Warn that compression does not save bytes while zeros travel."""
        found = Compressed.warnings(settings)
        return found if settings.indices == "hidden" else found[1:]

    def entries(self, n_items: int) -> int:
        """Return k if indices are clear."""
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
            # torch selects eight times slower than numpy on a CPU.
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
    # NaN sorts last and stays, so the sums can report it.
    least = np.partition(size, size.size - kept)[size.size - kept]
    keep = ~(size <= least)
    ties = np.nonzero(size == least)[0]
    keep[ties[: kept - int(keep.sum())]] = True
    return np.where(keep.reshape(values.shape), values, values.dtype.type(0))
