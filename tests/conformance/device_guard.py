"""Finds what would make a training loop wait for its device, while it runs on the CPU.

A GPU works through a queue of operations. Whoever reads a number from it, asks for a result whose
size depends on values, or copies between it and the processor, stops until the queue is empty.
`DeviceGuard` sees all of that without a GPU: torch hands it every operation before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Scalar reads, comparisons of whole tensors; nonzero, unique, repeats without a known total."""
_METHODS = ("item", "tolist", "numpy", "cpu", "cuda", "__array__")
"""What leaves the device without, or beside, an operation that torch would hand over."""
_FUNCTIONS = ("from_numpy", "as_tensor", "tensor")
"""What makes a tensor on the processor, to be copied to the device."""


class DeviceGuard(TorchDispatchMode):
    """Notes what waits for the device, in the order of marks that the caller sets.

    Attributes:
        found: the names of what waits, one list for each stretch between two marks; the first is
            that before any mark, the last that after all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = [[]]

    def mark(self) -> None:
        """Begin another stretch: the loop has come round once more."""
        self.found.append([])

    @property
    def inside(self) -> list[str]:
        """What waits between the first and the last mark."""
        return [name for stretch in self.found[1:-1] for name in stretch]

    @property
    def outside(self) -> list[str]:
        """What waits before the first and after the last mark."""
        return [*self.found[0], *(self.found[-1] if len(self.found) > 1 else [])]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Note the operation if it waits, and run it."""
        given = kwargs or {}
        if _waits(func, args, given):
            self._note(str(func))
        return func(*args, **given)

    @contextmanager
    def watching(self) -> Iterator[DeviceGuard]:
        """Watch everything that this thread does."""
        with ExitStack() as stack:
            for owner, names in ((torch.Tensor, _METHODS), (torch, _FUNCTIONS)):
                for name in names:
                    original = getattr(owner, name)
                    noted = self._noting(f"torch.{name}", original)
                    stack.enter_context(patch.object(owner, name, noted))
            stack.enter_context(self)
            yield self

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._note(name)
            return original(*args, **kwargs)

        return noted

    def _note(self, name: str) -> None:
        self.found[-1].append(name)


def _waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    packet = func.overloadpacket
    aten = torch.ops.aten
    if packet in (aten.index, aten.index_put, aten.index_put_):
        # Whole positions are as many as they are; how many are True is a value.
        return any(_is_mask(index) for index in args[1])
    if packet is aten.repeat_interleave and kwargs.get("output_size") is not None:
        return False
    if packet is aten.segment_reduce:
        return not kwargs.get("unsafe", False)
    if packet is aten._to_copy:
        return kwargs.get("device") is not None
    if packet in (aten.copy_, aten.set_):
        return any(isinstance(v, torch.Tensor) and v.device != args[0].device for v in args)
    return bool(_WAITING_TAGS & set(func.tags))


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
