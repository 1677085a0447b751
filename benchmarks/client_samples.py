"""A client's samples and minibatches as most federated code makes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, TensorDataset

NEGATIVES = 4
"""Negatives drawn for each positive, on both sides."""


def drawn_samples(
    positives: NDArray[np.int64], n_items: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return a client's items, positives first, and their labels."""
    free = np.setdiff1d(np.arange(n_items), positives)
    item = np.concatenate([positives, rng.choice(free, NEGATIVES * len(positives))])
    label = np.zeros(len(item), dtype=np.float32)
    label[: len(positives)] = 1.0
    return item, label


def batches(
    item: NDArray[np.int64], label: NDArray[np.float32], *, epochs: int, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a client's shuffled minibatches, epoch after epoch, from a DataLoader."""
    loader = DataLoader(
        TensorDataset(torch.from_numpy(item), torch.from_numpy(label)),
        batch_size=batch_size,
        shuffle=True,
    )
    for _ in range(epochs):
        yield from loader
