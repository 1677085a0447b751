"""SVD: the nearest matrix of rank r to a change of the item table.

A baseline of the CoLR paper (section 5.2): A = U S V^T, of which the r = `update.rank` largest
triples are kept. U_r S_r V_r^T is A V_r V_r^T, and V comes from the eigenvectors of the small
matrix A^T A (dim x dim), so that no decomposition ever is as large as the catalogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.exact_linalg import product, symmetric_eigen
from fedrec.updates.colr import CoLR
from fedrec.updates.compressed import Compressed
from fedrec.updates.paper_numbers import PaperNumbers

if TYPE_CHECKING:
    import torch

    from fedrec.updates.settings import UpdateSettings


_ROWS, _COLUMNS, _USERS = 64, 8, 8
"""Products have these sizes, whatever a user has: rows, columns, and users of a block."""


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
        # In blocks of rows, so that the rows of zeros behind a user's own change no bit of it.
        size = (n_users, _padded(n_rows, _ROWS), _padded(dim, _COLUMNS))
        tables = rows.new_zeros(size, dtype=torch.float64)
        tables[:n_users, :n_rows, :dim] = rows
        blocks = torch.split(tables, _ROWS, dim=1)
        gram = tables.new_zeros((size[0], size[2], size[2]))
        for block in blocks:
            gram += batched_product(block.transpose(1, 2), block, at_once=_USERS)
        # Training that diverged is told of by the sums; the decomposition would not return.
        finite = torch.isfinite(gram).all(2).all(1)[:, None, None]
        vectors = torch.linalg.eigh(torch.where(finite, gram, 0.0)).eigenvectors
        vectors[:, :, : vectors.shape[2] - self.rank] = 0.0
        near = batched_product(vectors, vectors.transpose(1, 2), at_once=_USERS)
        kept = torch.cat([batched_product(block, near, at_once=_USERS) for block in blocks], dim=1)
        return torch.where(finite, kept, torch.nan)[:n_users, :n_rows, :dim].to(rows.dtype)

    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return rank x n_items both ways, as the paper's times do; U, S and V are more."""
        size = self.rank * n_items
        payload = self.rank * (n_items + self.dim + 1)
        return PaperNumbers(upload=size, download=size, payload=payload)


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
