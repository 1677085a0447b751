"""Products of tensors whose bits do not depend on who else is in the batch."""

from __future__ import annotations

import torch

__all__ = ["product_of_blocks"]


def product_of_blocks(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return rows @ matrix with every row's bits independent of its neighbours and of threads.

    A plain product's summation order depends on the number of rows. Here rows are padded into
    blocks of 16, at least two of them, and multiplied block by block.

    Args:
        rows: float32 (n_rows, inner).
        matrix: float32 (inner, n_columns).
    """
    n_rows, inner = rows.shape
    n_blocks = max(2, -(-n_rows // 16))
    padded = rows.new_zeros((n_blocks * 16, inner))
    padded[:n_rows] = rows
    blocks = torch.bmm(padded.view(n_blocks, 16, inner), matrix.expand(n_blocks, -1, -1))
    return blocks.view(n_blocks * 16, -1)[:n_rows]
