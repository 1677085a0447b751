"""Linear algebra whose bits do not depend on the numbers of users and threads.

A linear algebra library chooses its kernels by shape: on an AMD EPYC a product in a batch of one
differed from the same product in a batch of eight, and sometimes one in a batch of two did. So that
a user's result depends on that user alone, no call's shape follows from the number of users.
Products of matrices with 5 to 13 columns also differed by their place in the batch, which decides
where a matrix begins in memory. `user_product` starts each at a multiple of a cache line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

_WORK = 1 << 24
"""The number of multiplications in a call that makes the call's own cost negligible."""
_FEWEST, _MOST = 2, 1024
_USERS = 8
_LINE, _BYTES = 16, 4
"""The number of float32 values in a cache line, and the bytes of each."""


def batched_product(left: torch.Tensor, right: torch.Tensor, *, at_once: int = 0) -> torch.Tensor:
    """Return left @ right for each pair of matrices, in calls whose size follows from the matrices.

    On a device other than a processor, which promises no bits, all pairs are one call.

    Args:
        left: (n, n_rows, inner).
        right: (n, inner, n_columns).
        at_once: pairs in a call, 2 or more, if most callers have that many. Fewer are padded.
    """
    if left.device.type != "cpu":
        return torch.bmm(left, right)
    n, n_rows, inner = left.shape
    at_once = at_once or _at_once(n_rows * inner * right.shape[2])
    left, right = _filled(left, at_once), _filled(right, at_once)
    found = left.new_empty((len(left), n_rows, right.shape[2]))
    for begin in range(0, len(left), at_once):
        # The last call repeats some pairs of the previous one.
        part = slice(min(begin, len(left) - at_once), min(begin + at_once, len(left)))
        torch.bmm(left[part], right[part], out=found[part])
    return found if len(found) == n else found[:n]


def product_of_blocks(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return rows @ matrix, with every row's bits independent of its neighbours and of threads.

    A plain product's summation order depends on the number of rows. Here rows are padded into
    blocks of 16, which `batched_product` multiplies.

    Args:
        rows: float32 (n_rows, inner).
        matrix: float32 (inner, n_columns).
    """
    n_rows, inner = rows.shape
    n_blocks = -(-n_rows // 16)
    padded = rows.new_zeros((n_blocks * 16, inner))
    padded[:n_rows] = rows
    blocks = batched_product(padded.view(n_blocks, 16, inner), matrix.expand(n_blocks, -1, -1))
    return blocks.view(n_blocks * 16, -1)[:n_rows]


def user_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left @ right for each user, with a gradient. A user's bits depend on that user alone.

    Args:
        left: float32 (n_users, n_rows, inner), or (1, ...) where all users have one matrix.
        right: float32 (n_users, inner, n_columns), or (1, ...).
    """
    if left.device.type != "cpu":
        return left @ right
    n_users = max(len(left), len(right))
    left, right = left.expand(n_users, -1, -1), right.expand(n_users, -1, -1)
    work = left.shape[1] * left.shape[2] * right.shape[2]
    is_whole = n_users == _USERS <= _at_once(work) and left.shape[1] * right.shape[2] % _LINE == 0
    if is_whole and not _astray(left, right):
        # Gradients are as large as their tensors.
        return torch.bmm(left, right)
    found: torch.Tensor = _UserProduct.apply(left, right)  # type: ignore[no-untyped-call]
    return found


class _UserProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        return _in_lines(left, right)

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        left, right = ctx.saved_tensors
        wants_left, wants_right = ctx.needs_input_grad
        return (
            _in_lines(outer, right.mT) if wants_left else None,
            _in_lines(left.mT, outer) if wants_right else None,
        )


def _in_lines(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply matrices so that each operand and each product begins at a cache line."""
    n_users, n_rows, inner = left.shape
    n_columns = right.shape[2]
    wide = n_columns if n_rows * n_columns % _LINE == 0 else _whole_lines(n_columns)
    if wide > n_columns:
        right = torch.nn.functional.pad(right, (0, wide - n_columns))
    at_once = min(_at_once(n_rows * inner * wide), _USERS)
    found = batched_product(_lined(left, at_once), _lined(right, at_once), at_once=at_once)
    # Callers may write into it, which autograd refuses for a view that is made here.
    whole = len(found) == n_users and wide == n_columns
    return found if whole else found[:n_users, :, :n_columns].clone()


def _astray(*batches: torch.Tensor) -> int:
    """Return how many batches have a matrix that begins within a cache line or is not contiguous.

    A transposed matrix counts as contiguous.
    """
    return sum(
        matrices.data_ptr() % (_LINE * _BYTES) != 0
        or matrices.stride(0) % _LINE != 0
        or matrices.shape[1] * matrices.shape[2] % _LINE != 0
        or not (
            (matrices.stride(2) == 1 and matrices.stride(1) == matrices.shape[2])
            or (matrices.stride(1) == 1 and matrices.stride(2) == matrices.shape[1])
        )
        for matrices in batches
    )


def _lined(matrices: torch.Tensor, fewest: int) -> torch.Tensor:
    """Return the matrices, padded or copied, so that each begins at a cache line.

    Their memory layout follows from one matrix, not from their number or their old place. A
    transposed one stays transposed, because libraries have a different kernel for it.
    """
    if not _astray(matrices):
        return _filled(matrices, fewest)
    if matrices.stride(1) == 1 != matrices.stride(2):
        return _lined(matrices.mT, fewest).mT
    n, n_rows, n_columns = matrices.shape
    size = n_rows * n_columns
    apart = matrices.new_empty((max(n, fewest), _whole_lines(size)))
    found = apart[:, :size].view(-1, n_rows, n_columns)
    found[:n], found[n:] = matrices, 0.0
    return found


def _whole_lines(length: int) -> int:
    return -(-length // _LINE) * _LINE


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Limit torch's threads inside a block, and restore their number afterwards.

    The number belongs to the process, so it would apply to all other callers.

    Args:
        number: the largest number of threads, or 0 for all of them.
    """
    before = torch.get_num_threads()
    if number:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if number:
            torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Run torch on one thread, because splitting a product may change its bits."""
    return on_threads(1)


def _at_once(work: int) -> int:
    """Return a power of two for matrices that take this number of multiplications each."""
    wanted = _WORK // max(work, 1)
    return 1 << (min(max(wanted, _FEWEST), _MOST).bit_length() - 1)


def _filled(matrices: torch.Tensor, fewest: int) -> torch.Tensor:
    """Return the matrices padded with others, in the same memory layout."""
    missing = fewest - len(matrices)
    if missing <= 0:
        return matrices
    if len(matrices) == 1 or matrices.stride(0) == 0:
        return matrices[:1].expand(fewest, -1, -1)
    turned = matrices.stride(2) != 1
    kept = matrices.mT if turned else matrices
    filled = torch.cat([kept, kept.new_zeros((missing, *kept.shape[1:]))])
    return filled.mT if turned else filled


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
