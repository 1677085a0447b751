"""Rounding to the fixed-point grid, and exact sums of rounded values.

Every user's values are clipped to the public range and rounded before they are added. Sums are
therefore integers and depend neither on the order nor on the grouping of users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import torch

from fedrec.algorithms.cohort import BlockChange, idle_change
from fedrec.algorithms.declarations import UpdateTensor
from fedrec.privacy.clipping import shrunk_to

_EXACT = 1 << 53
"""float64 holds integers below this exactly."""


class GridSum:
    """Accumulates users' values as integers, on the device that computes them.

    Args:
        tensor: the tensor to sum.
        n_items: active items, which are the rows of a tensor per item.
        maximum_users: largest number of users in the sum. Each adds to a row at most once.
    """

    def __init__(
        self, tensor: UpdateTensor, n_items: int, *, maximum_users: int, device: torch.device
    ) -> None:
        rows = n_items if tensor.per_item else 1
        self.width = math.prod(tensor.shape[1:]) if tensor.per_item else tensor.size
        self.signed = tensor.signed
        self.is_weighed = tensor.largest_weight > 1
        self.scale = 1.0 / tensor.step
        self.bound = float(1 << tensor.fraction_bits)
        # Floating point adds two to three times as fast, and exactly below 2^53. Rows of tables
        # that decay as a whole are differences of two changes until they are settled.
        exact = 2 * tensor.bound * maximum_users < _EXACT
        self._type = torch.float64 if exact else torch.int64
        # One extra row takes the padding of the trainer's tables.
        self._change = torch.zeros((rows + 1, self.width), dtype=self._type, device=device)
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    @property
    def change(self) -> torch.Tensor:
        """The summed rows, int64 (n_items, width), in grid steps.

        Zero for values that aren't finite.
        """
        return torch.nan_to_num(self._change[:-1]).to(torch.int64)

    def add(self, item_index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Add one row per (user, item) pair.

        Args:
            item_index: int64 (n_rows,), n_items for rows of zeros that are not counted.
            rows: float (n_rows, width), each one user's change of one item.

        Returns:
            int64 (n_rows,): number of clipped values in each row.
        """
        inside, clipped = self.rounded(rows)
        self.put(item_index, inside)
        return clipped

    def add_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Add users' contributions to a tensor without an item axis: it has one row.

        Args:
            rows: float (n_users, width).

        Returns:
            int64 (n_users,): number of clipped values of each user.
        """
        inside, clipped = self.rounded(rows)
        self.put_total(self.total(inside))
        return clipped

    def add_sums(self, change: torch.Tensor, *, finite: bool | torch.Tensor) -> None:
        """Add values that were rounded and summed elsewhere.

        Args:
            change: int64 (n_items, width), in grid steps.
            finite: whether every value was finite before it was rounded.
        """
        self._change[:-1] += change
        self.finite &= finite

    def put(self, item_index: torch.Tensor, rounded: torch.Tensor) -> None:
        """Add rounded rows. See `add`."""
        # CUDA adds the rows of one item in no fixed order. Sums of integers are exact in either
        # type, so the order has no effect.
        self._change.index_add_(0, item_index, self.typed(rounded))

    def put_total(self, total: torch.Tensor) -> None:
        """Add the result of `total`."""
        self._change[0].add_(total)

    def total(self, rounded: torch.Tensor) -> torch.Tensor:
        """Return the sum of users' rounded values, (width,), in the sums' own type."""
        return self.typed(rounded).sum(0)

    def typed(self, rounded: torch.Tensor) -> torch.Tensor:
        """Return rounded values in the sums' own type, which `put` takes without conversion."""
        return rounded.to(self._type)

    @property
    def n_bytes(self) -> int:
        """Memory of the sums, in bytes."""
        return self._change.nbytes

    def shapes(self) -> GridSum:
        """Return a copy without values, on torch's meta device."""
        found = copy(self)
        found._change, found.finite = self._change.to("meta"), self.finite.to("meta")
        return found

    def rounded(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return clipped values in grid steps, and each row's number of clipped values, int64."""
        scaled = (values * self.scale).round_()
        inside = scaled.clamp(-self.bound, self.bound)
        # Values are integers: a nonzero one is at least 1. Comparing and counting takes three times
        # as long.
        beyond = scaled.sub_(inside).abs_()
        # A value that isn't finite makes its row's sum not finite.
        self.finite &= torch.isfinite(beyond.sum(-1)).all()
        clipped = torch.nan_to_num_(beyond.clamp_(max=1.0).sum(-1)).to(torch.int64)
        if self._type == torch.int64:
            inside.nan_to_num_()
        return inside, clipped


def _weighed(rounded: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return users' values times their weights. The results are below 2^53, hence exact."""
    return rounded.to(torch.float64) * weight.view(-1, *[1] * (rounded.dim() - 1))


class RoundSums:
    """All sums of a round: one `GridSum` for each tensor, and the users that touched each item.

    Args:
        tensors: the sums by the tensor's name.
        n_items: active items.
        counts_rows: whether to count the users that touch an item.
        longest: largest length (L2 norm) of a user's whole change, in grid steps of all tensors
            alike. A longer one is shrunk. None for no limit. With a limit, tensors that noise must
            not change (`signed` is false) and the counts stay zero, and every user counts once: a
            weight would lengthen its change again.
        most_steps: largest number of a user's steps in the round if tables decay as a whole, else
            0.
    """

    def __init__(
        self,
        tensors: Mapping[str, GridSum],
        n_items: int,
        *,
        device: torch.device,
        counts_rows: bool = True,
        longest: int | None = None,
        most_steps: int = 0,
    ) -> None:
        self.tensors = tensors
        # By number of steps: the users' number, and their weights together.
        self._stopped = torch.zeros((most_steps + 1, 2), dtype=torch.int64, device=device)
        self._losses_finite = torch.ones((), dtype=torch.bool, device=device)
        self._counts_rows = counts_rows and longest is None
        self._longest = longest
        self._counts = torch.zeros(n_items + 1, dtype=torch.int64, device=device)
        self._n_shrunk = torch.zeros((), dtype=torch.int64, device=device)

    def __getitem__(self, name: str) -> GridSum:
        return self.tensors[name]

    @property
    def counts(self) -> torch.Tensor:
        """Number of users that touched each item, int64 (n_items,)."""
        return self._counts[:-1]

    @property
    def finite(self) -> bool:
        """Whether every loss, and every value before rounding, was finite."""
        return bool(self._losses_finite) and all(
            bool(total.finite) for total in self.tensors.values()
        )

    @property
    def n_shrunk(self) -> int:
        """Number of users whose whole change was longer than allowed."""
        return int(self._n_shrunk)

    def add_block(self, change: BlockChange) -> torch.Tensor:
        """Round users' changes and add them. See `ChangeSink`."""
        values = {**change.rows, **change.whole}
        if self._longest is not None:
            values = {name: own for name, own in values.items() if self[name].signed}
        clipped = torch.zeros_like(change.item[:, 0])
        rounded = {}
        for name, own in values.items():
            rounded[name], over = self[name].rounded(own)
            clipped += over.flatten(1).sum(1) if over.dim() > 1 else over
        idle = {name: self[name].rounded(own)[0] for name, own in change.idle.items()}
        n_shrunk = torch.zeros_like(self._n_shrunk)
        if self._longest is not None and rounded:
            rounded, shrunk = shrunk_to(rounded, self._longest)
            n_shrunk = shrunk.sum()
        item = change.item.reshape(-1)
        rows: dict[str, torch.Tensor] = {}
        totals: dict[str, torch.Tensor] = {}
        for name, inside in rounded.items():
            if name in change.weight and self._longest is None:
                inside = _weighed(inside, change.weight[name])
                if name in idle:
                    idle[name] = _weighed(idle[name], change.weight[name])
            if name in change.rows:
                rows[name] = self[name].typed(inside.reshape(-1, inside.shape[-1]))
                if name in idle:
                    # `settle` adds it for these rows, too.
                    rows[name] = rows[name] - self[name].typed(idle[name].view_as(rows[name]))
            else:
                totals[name] = self[name].total(inside)
        once = torch.ones_like(item)
        stopped = None
        if change.steps is not None:
            once_each = torch.ones_like(change.steps)
            weight = next(iter(change.weight.values()), once_each)
            stopped = torch.stack([once_each, weight], dim=1)
        losses_finite = None if change.loss is None else torch.isfinite(change.loss).all()
        # From here on, no memory is allocated. A block that did not fit is trained again, and
        # anything that it has added by then would be added twice.
        for name, ready in rows.items():
            self[name].put(item, ready)
        for name, ready in totals.items():
            self[name].put_total(ready)
        if self._counts_rows:
            self._counts.index_add_(0, item, once)
        if change.steps is not None and stopped is not None:
            self._stopped.index_add_(0, change.steps, stopped)
        if losses_finite is not None:
            self._losses_finite &= losses_finite
        self._n_shrunk.add_(n_shrunk)
        return clipped

    def settle(
        self, tables: Mapping[str, torch.Tensor], shrinking: Mapping[str, torch.Tensor]
    ) -> int:
        """Add the decay of users' untouched rows. Call it once, after all users' blocks are added.

        Args:
            tables: the output of `fedrec.algorithms.whole_decay.decaying`, (n_items, ...).
            shrinking: the output of `fedrec.algorithms.whole_decay.shrinking`.

        Returns:
            Number of clipped values, over all users.
        """
        n_clipped = 0
        steps = torch.nonzero(self._stopped[:, 0]).view(-1)
        for name, shrunk in shrinking.items():
            if name not in self.tensors:
                continue
            total = self[name]
            rows = tables[name].reshape(len(tables[name]), total.width)
            for k in steps.tolist():
                inside, clipped = total.rounded(idle_change(rows[None], shrunk[k : k + 1])[0])
                n_users, weight = self._stopped[k].tolist()
                times = weight if total.is_weighed else n_users
                total.add_sums(inside.to(torch.int64) * times, finite=True)
                n_clipped += n_users * int(clipped.sum())
        return n_clipped

    def shrunk(self, rounded: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Return users' rounded values, shrunk to the allowed length.

        They must be a user's whole contribution.

        Args:
            rounded: (n_users, width), in grid steps.
            times: number of rows in which each user contributes them, (n_users,).
        """
        if self._longest is None:
            return rounded
        found, longer = shrunk_to({"": rounded}, self._longest, times)
        self._n_shrunk.add_(longer.sum())
        return found[""]

    def count(self, item_index: torch.Tensor) -> None:
        """Count one user for every row's item, except under noise. n_items is not counted."""
        if self._longest is not None:
            return
        self._counts.index_add_(0, item_index, torch.ones_like(item_index))

    @property
    def n_bytes(self) -> int:
        """Memory of all sums, in bytes."""
        return self._counts.nbytes + sum(total.n_bytes for total in self.tensors.values())

    def shapes(self) -> RoundSums:
        """Return a copy without values, on torch's meta device."""
        found = copy(self)
        found.tensors = {name: total.shapes() for name, total in self.tensors.items()}
        found._counts, found._n_shrunk = self._counts.to("meta"), self._n_shrunk.to("meta")
        found._stopped = self._stopped.to("meta")
        found._losses_finite = self._losses_finite.to("meta")
        return found

    def add_counts(self, counts: torch.Tensor) -> None:
        """Add counts from elsewhere, int64 (n_items,)."""
        self._counts[:-1] += counts

    def add_steps(self, steps: torch.Tensor) -> None:
        """Note the steps of users whose rows were rounded elsewhere, int64 (n_users,)."""
        once = torch.ones_like(steps)
        self._stopped.index_add_(0, steps, torch.stack([once, once], dim=1))

    # Several processes each compute their own sums.

    @property
    def parts(self) -> dict[str, torch.Tensor]:
        """The tensors that contain the sums, padding included.

        By name: "" for the counts, and "/steps" for the number of users by number of steps.
        """
        own = {name: total._change for name, total in self.tensors.items()}
        return own | {"": self._counts, "/steps": self._stopped}

    def store_in(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Continue in tensors of zeros like `parts`, which belong to the caller."""
        for name, total in self.tensors.items():
            total._change = parts[name]
        self._counts, self._stopped = parts[""], parts["/steps"]

    def add_parts(self, parts: Mapping[str, torch.Tensor], *, finite: bool, n_shrunk: int) -> None:
        """Add the sums of other users, given as their `parts`, `finite` and `n_shrunk`."""
        for name, total in self.tensors.items():
            total._change += parts[name]
            total.finite &= finite
        self._losses_finite &= finite
        self._counts += parts[""]
        self._stopped += parts["/steps"]
        self._n_shrunk += n_shrunk


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsShape:
    """The shapes of a round's sums. See `RoundSums` and `GridSum`.

    Attributes:
        maximum_users: largest number of users in the sums.
        most_steps: largest number of a user's steps in the round, if tables decay as a whole.
    """

    tensors: tuple[UpdateTensor, ...]
    n_items: int
    maximum_users: int
    counts_rows: bool
    longest: int | None
    most_steps: int = 0

    def empty(self, device: torch.device) -> RoundSums:
        """Return sums of zero."""
        return RoundSums(
            {
                tensor.name: GridSum(
                    tensor, self.n_items, maximum_users=self.maximum_users, device=device
                )
                for tensor in self.tensors
            },
            self.n_items,
            device=device,
            counts_rows=self.counts_rows,
            longest=self.longest,
            most_steps=self.most_steps,
        )
