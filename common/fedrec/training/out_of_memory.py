"""What is done when a device has no room: fewer users at once, down to one block of eight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import ChunkResult
from fedrec.errors import SettingsError
from fedrec.training.blocks import BLOCK_USERS

if TYPE_CHECKING:
    from fedrec.algorithms.cohort import Chunk
    from fedrec.training.blocks import BlockSize

__all__ = ["in_halves", "smaller"]

Tensors = dict[str, torch.Tensor]

_REMEDY = (
    "Lower client.device_memory_mib if private tables take the room, free memory of the device "
    '(`nvidia-smi` shows who has it), lower algorithm.batch_size, or set client.device = "cpu".'
)


def in_halves(
    chunk: Chunk, private: Tensors, train: Callable[[Chunk, Tensors], ChunkResult]
) -> ChunkResult:
    """Train a chunk whose samples do not fit as two chunks.

    Nothing of it has been added to any sum; a user's samples are the same in any chunk.

    Raises:
        SettingsError: when it has no more users than one block.
    """
    if chunk.n_users <= BLOCK_USERS:
        raise SettingsError(
            f"The samples of {chunk.n_users} users do not fit the memory of "
            f"{chunk.user_index.device}, and fewer are not trained at once.",
            remedy=_REMEDY,
        )
    _give_back(chunk.user_index.device)
    first, second = chunk.halves()
    found = [
        train(first, {name: values[: first.n_users] for name, values in private.items()}),
        train(second, {name: values[first.n_users :] for name, values in private.items()}),
    ]
    return ChunkResult(
        private={
            name: torch.cat([part.private[name] for part in found]) for name in found[0].private
        },
        loss=torch.cat([part.loss for part in found]),
        clipped=torch.cat([part.clipped for part in found]),
    )


def smaller(block_users: int, size: BlockSize, chunk: Chunk, problem: str) -> int:
    """Return half as many users of a block, a multiple of eight.

    Raises:
        SettingsError: when there were eight.
    """
    device = chunk.user_index.device
    if block_users <= BLOCK_USERS:
        raise SettingsError(
            f"A block of {block_users} users, each with {size.n_rows} item rows and minibatches of "
            f"{size.n_steps} x {size.batch_size} samples, does not fit the memory of {device}: "
            f"{problem}",
            remedy=_REMEDY,
        )
    _give_back(device)
    return max(BLOCK_USERS, block_users // 2 // BLOCK_USERS * BLOCK_USERS)


def _give_back(device: torch.device) -> None:
    """Let torch's allocator forget its cached pieces, which may be too small for the next try."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
