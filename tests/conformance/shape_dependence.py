"""A library for linear algebra that depends on shapes and places as much as it possibly can."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_APART = 1e-3
_LINE = 64


class ShapeDependence(TorchDispatchMode):
    """While it is entered, every product is off by a factor that follows from its shapes and place.

    Libraries choose their kernels by shape, and which shapes share one differs between
    processors. Some also go by where in a cache line a matrix begins, which of a batch's matrices
    follows from their place in it. What comes out the same here computes each user's products in
    shapes and at places that do not follow from the other users, and so comes out the same under
    any library.

    Attributes:
        seen: how many products were changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute an operation, and change it where it is a product."""
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in _PRODUCTS | _SYSTEMS.keys():
            which = _SYSTEMS.get(func.overloadpacket)
            made = found if which is None else found[which] if isinstance(found, tuple) else found
            given = [each for each in args if isinstance(each, torch.Tensor)]
            shapes = [tuple(each.shape) for each in given]
            if which is None:
                begins = [_begins(each) for each in (*given, made)]
            else:
                # They are copied before they are solved, end to end.
                shapes = [shape[1:] for shape in shapes]
                begins = [_begins(each.contiguous()) for each in given]
            places = tuple(zip(*begins, strict=True))
            off = _factors(str(func.overloadpacket), tuple(shapes), places)
            factors = torch.tensor(off, dtype=made.dtype)
            made.mul_(factors.view(-1, 1, 1) if made.dim() == 3 else factors[0])
            self.seen += 1
        return found


@lru_cache(maxsize=4096)
def _factors(
    name: str, shapes: tuple[tuple[int, ...], ...], places: tuple[tuple[int, ...], ...]
) -> list[float]:
    """Return what the result for each matrix of a batch is multiplied with."""
    words = [zlib.crc32(repr((name, shapes, place)).encode()) for place in places]
    return [1.0 + _APART * (word % 1000) / 1000 for word in words]


def _begins(matrices: torch.Tensor) -> list[int]:
    """Return at which byte of a cache line each matrix of a batch begins."""
    if matrices.dim() < 3:
        return [matrices.data_ptr() % _LINE]
    apart = matrices.stride(0) * matrices.element_size()
    return [(matrices.data_ptr() + n * apart) % _LINE for n in range(len(matrices))]


_aten = torch.ops.aten
_PRODUCTS = {
    _aten.mm, _aten.bmm, _aten.mv, _aten.dot, _aten.vdot, _aten.addmm, _aten.addmv, _aten.addbmm,
    _aten.baddbmm, _aten.addr, _aten.linear, _aten.convolution,
}  # fmt: skip
_SYSTEMS = {_aten.linalg_cholesky_ex: 0, _aten.cholesky_solve: 0, _aten._linalg_eigh: 1}
"""Where the result is in what an operation on a batch of systems returns."""
