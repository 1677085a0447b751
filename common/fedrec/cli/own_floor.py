"""The cost of a client's own floor, `client.minimum_own_item_users`, on the local data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.cli.terminal import count_of
from fedrec.data.interactions import user_groups
from fedrec.data.splits import UserSplit

_FLOORS = (1, 3, 5, 10)
_RECOMMENDED = (5, 3)
_MOST_BELOW = 0.1


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorCost:
    """The cost of one floor.

    Attributes:
        floor: the minimum number of a client's users that hold an item.
        rows: the rows that a client contributes to, on average.
        below: the share of the training interactions in rows below the floor.
    """

    floor: int
    rows: float
    below: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldRows:
    """The items that each client's users hold, with their numbers of holders.

    Attributes:
        n_users, n_clients: the numbers of users and clients.
        items: an item of a client, int64 (n_held,).
        holders: the number of that client's users that hold it, int64 (n_held,).
    """

    n_users: int
    n_clients: int
    items: NDArray[np.int64]
    holders: NDArray[np.int64]

    @classmethod
    def of(cls, users: UserSplit, n_items: int, n_clients: int) -> HeldRows:
        """Count each client's users, dealt out as in a simulation. 0 clients count as one."""
        client = np.zeros(len(users), dtype=np.int64)
        if n_clients > 1:
            for number, group in enumerate(user_groups(users.user_ids, n_clients)):
                client[group] = number
        held = client[users.train_owner] * n_items + users.train_items
        rows, holders = np.unique(held, return_counts=True)
        return cls(
            n_users=len(users),
            n_clients=max(1, n_clients),
            items=rows % max(1, n_items),
            holders=holders.astype(np.int64),
        )

    def trained(self, floor: int, least: int) -> int:
        """Return the number of items trained if the whole federation had only this data.

        Args:
            least: `federation.minimum_item_users`.
        """
        kept = self.holders >= floor
        total = np.bincount(self.items[kept], self.holders[kept])
        return int((total >= least).sum())

    def cost(self, floor: int) -> FloorCost:
        """Return the cost of a floor."""
        kept = self.holders >= floor
        below = int(self.holders[~kept].sum()) / max(1, int(self.holders.sum()))
        return FloorCost(floor=floor, rows=int(kept.sum()) / self.n_clients, below=below)

    @property
    def recommended(self) -> int:
        """The largest of the usual floors that leaves nearly all interactions above it."""
        return next((each for each in _RECOMMENDED if self.cost(each).below <= _MOST_BELOW), 1)

    def content(self) -> dict[str, object]:
        """Return the costs for `--json`."""
        return {
            "clients": self.n_clients,
            "floors": [asdict(self.cost(each)) for each in _FLOORS],
            "recommended": self.recommended,
        }

    def table(self, floor: int) -> Iterator[tuple[str, str]]:
        """Yield the costs as rows of a table.

        Args:
            floor: the floor in the settings.
        """
        all_rows, *costs = map(self.cost, _FLOORS)
        dealt = "" if self.n_clients == 1 else f", with users dealt to {self.n_clients} clients"
        yield (
            "rows above an own floor",
            "; ".join(f"{each.floor}: {each.rows:.0f}" for each in costs)
            + f" of {all_rows.rows:.0f} rows a client. Below it: "
            + ", ".join(_percent(each.below) for each in costs)
            + f" of the interactions{dealt}",
        )
        yield "client.minimum_own_item_users", f"{self._reason()}. The setting is {floor}"

    def _reason(self) -> str:
        best, most = self.recommended, f"{100 * _MOST_BELOW:.0f} %"
        if best > 1:
            lost = _percent(self.cost(best).below)
            return f"{best} is recommended: {lost} of the interactions are below, {most} may be"
        if self.n_users <= self.n_clients:
            return "1 is recommended: a client of one user can't have a floor"
        least = self.cost(min(_RECOMMENDED))
        clients = count_of(self.n_clients, "client")
        return (
            f"1 is recommended: {_percent(least.below)} of the interactions of {clients} are below "
            f"{least.floor}, which is more than {most}"
        )
