"""Lengths of rows whose gradients take one pass over the rows each.

What autograd derives from `rows.square().sum(-1)` goes over the rows five times, a power and two
products among them; most of a round's time is such passes. The values are those of the plain
expressions, and the gradients, too.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["absolute_sums", "square_sums"]


def square_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of each row, (...,), of rows (..., dim)."""
    found: torch.Tensor = _SquareSums.apply(rows)  # type: ignore[no-untyped-call]
    return found


def absolute_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of the absolute values of each row, (...,), of rows (..., dim)."""
    found: torch.Tensor = _AbsoluteSums.apply(rows)  # type: ignore[no-untyped-call]
    return found


class _SquareSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        total: torch.Tensor = rows.square().sum(-1)
        return total

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> torch.Tensor:
        (rows,) = ctx.saved_tensors
        along: torch.Tensor = rows * (2.0 * outer).unsqueeze(-1)
        return along


class _AbsoluteSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        total: torch.Tensor = rows.abs().sum(-1)
        return total

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> torch.Tensor:
        (rows,) = ctx.saved_tensors
        along: torch.Tensor = rows.sgn()
        return along.mul_(outer.unsqueeze(-1))
