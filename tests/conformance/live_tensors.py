"""Counts the memory of tensors that are alive at once, on the CPU, as a device would hold them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fedrec.training import blocks, samples


class LiveTensors(TorchDispatchMode):
    """Every storage that an operation returns, that autograd saves, or that comes from numpy.

    Attributes:
        peak: the most bytes at any moment.
        saved: bytes of all tensors that autograd saved, one after the other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = self.saved = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and look at its results."""
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.see, result)
        return result

    def see(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor's storage, once, until nothing holds it."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key and key not in self._seen:
            self._seen.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key, storage.nbytes())
        return tensor

    def _gone(self, key: int, n_bytes: int) -> None:
        self._seen.remove(key)
        self.now -= n_bytes

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        self.saved += tensor.untyped_storage().nbytes()
        return self.see(tensor)

    @contextmanager
    def counting(self) -> Iterator[LiveTensors]:
        """Count everything that this thread does; sort as a device does, not in numpy."""
        from_numpy = torch.from_numpy
        ours = (
            (torch, "from_numpy", lambda array: self.see(from_numpy(array))),
            (samples, "argsorted", torch.argsort),
            (blocks, "sorted_rows", lambda keys: torch.sort(keys, dim=-1).values),
        )
        with ExitStack() as stack:
            for owner, name, value in ours:
                stack.enter_context(patch.object(owner, name, value))
            stack.enter_context(saved_tensors_hooks(self._save, lambda tensor: tensor))
            stack.enter_context(self)
            yield self
