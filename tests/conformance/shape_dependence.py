"""A library for linear algebra whose results depend on shapes as much as they possibly can."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ShapeDependence"]

_APART = 1e-3


class ShapeDependence(TorchDispatchMode):
    """While it is entered, every product is off by a factor that follows from all its shapes.

    Libraries choose their kernels by shape, and which shapes share one differs between
    processors. What comes out the same here computes each user's products in shapes that do not
    follow from the other users, and so comes out the same under any library.

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
        if func.overloadpacket in _PRODUCTS:
            shapes = [tuple(each.shape) for each in args if isinstance(each, torch.Tensor)]
            word = zlib.crc32(repr((str(func.overloadpacket), shapes)).encode())
            found.mul_(1.0 + _APART * (word % 1000) / 1000)
            self.seen += 1
        return found


_aten = torch.ops.aten
_PRODUCTS = {
    _aten.mm, _aten.bmm, _aten.mv, _aten.dot, _aten.vdot, _aten.addmm, _aten.addmv, _aten.addbmm,
    _aten.baddbmm, _aten.addr, _aten.linear, _aten.convolution,
}  # fmt: skip
