"""Rounding to the fixed-point grid, and exact sums of what was rounded.

Every user's values are clipped to the public range and rounded before anything is added, so that
sums are integers and depend neither on the order nor on how users are grouped (DESIGN section 3).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedrec.training.products import batched_product

__all__ = ["GridSum", "RoundSums", "product_of_blocks"]


_EXACT = 1 << 53
"""Integers below this are float64 values."""


class GridSum:
    """Accumulates users' rows as integers, on the device where they are made.

    Args:
        n_items: rows of the table.
        width: values per row.
        step: size of a grid step.
        bound: largest absolute value of one user, in grid steps.
        maximum_users: most users in the sum; each adds to a row at most once.
    """

    def __init__(
        self,
        n_items: int,
        width: int,
        *,
        step: float,
        bound: int,
        maximum_users: int,
        device: torch.device,
    ) -> None:
        self.width = width
        self.scale = 1.0 / step
        self.bound = float(bound)
        # Floating point adds up two to three times as fast, and exactly below 2^53.
        self._type = torch.float64 if bound * maximum_users < _EXACT else torch.int64
        # One row more than there are items takes the padding of the trainer's tables.
        self._change = torch.zeros((n_items + 1, width), dtype=self._type, device=device)
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    @property
    def change(self) -> torch.Tensor:
        """The summed rows, int64 (n_items, width), in grid steps; zero where not finite."""
        return torch.nan_to_num(self._change[:-1]).to(torch.int64)

    def add(self, item_index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Add one row per (user, item) pair.

        Args:
            item_index: int64 (n_rows,), n_items for rows of zeros that count nowhere.
            rows: float32 (n_rows, width), each one user's change of one item.

        Returns:
            int64 (n_rows,): how many of each row's values had to be clipped.
        """
        inside, clipped = self._rounded(rows)
        self._change.index_add_(0, item_index, inside)
        return clipped

    def add_table(self, rows: torch.Tensor) -> torch.Tensor:
        """Add every user's change of every item.

        Args:
            rows: float32 (n_users, n_items, width).

        Returns:
            int64 (n_users,): how many of each user's values had to be clipped.
        """
        inside, clipped = self._rounded(rows.flatten(1))
        self._change[:-1] += inside.sum(0).view(-1, self.width)
        return clipped

    def add_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Add users' contributions to a tensor that belongs to no items: it has one row.

        Args:
            rows: float32 (n_users, width).

        Returns:
            int64 (n_users,): how many of each user's values had to be clipped.
        """
        inside, clipped = self._rounded(rows)
        self._change[0] += inside.sum(0)
        return clipped

    def add_sums(self, change: torch.Tensor, *, finite: bool) -> None:
        """Add what was rounded and summed elsewhere.

        Args:
            change: int64 (n_items, width), in grid steps.
            finite: whether every value was finite before it was rounded.
        """
        self._change[:-1] += change
        self.finite &= finite

    def _rounded(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = (rows * self.scale).round_()
        inside = scaled.clamp(-self.bound, self.bound)
        # Whole numbers: what is not zero is at least one. Comparing and counting bits takes
        # three times as long.
        beyond = scaled.sub_(inside).abs_()
        # What is not finite makes its row's sum not finite.
        self.finite &= torch.isfinite(beyond.sum(1)).all()
        clipped = torch.nan_to_num_(beyond.clamp_(max=1.0).sum(1)).to(torch.int64)
        if self._type == torch.int64:
            inside.nan_to_num_()
        return inside.to(self._type), clipped


class RoundSums:
    """All sums of a round: one `GridSum` for each tensor, and the users who touched each item.

    Args:
        tensors: the sums by the tensor's name.
        n_items: active items.
    """

    def __init__(
        self, tensors: Mapping[str, GridSum], n_items: int, *, device: torch.device
    ) -> None:
        self.tensors = tensors
        self._counts = torch.zeros(n_items + 1, dtype=torch.int64, device=device)

    def __getitem__(self, name: str) -> GridSum:
        return self.tensors[name]

    @property
    def counts(self) -> torch.Tensor:
        """How many users touched each item, int64 (n_items,)."""
        return self._counts[:-1]

    @property
    def finite(self) -> bool:
        """Whether every value was finite before it was rounded."""
        return all(bool(total.finite) for total in self.tensors.values())

    def count(self, item_index: torch.Tensor) -> None:
        """Count one user for every row's item; n_items counts nowhere."""
        self._counts.index_add_(0, item_index, torch.ones_like(item_index))

    def count_all(self, n_users: int) -> None:
        """Count some users for every item."""
        self._counts[:-1] += n_users

    def add_counts(self, counts: torch.Tensor) -> None:
        """Add what was counted elsewhere, int64 (n_items,)."""
        self._counts[:-1] += counts


def product_of_blocks(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return rows @ matrix with every row's bits independent of its neighbours and of threads.

    A plain product's summation order depends on the number of rows. Here rows are padded into
    blocks of 16, which are multiplied as `batched_product` does it.

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
