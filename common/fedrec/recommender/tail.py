"""Tail at home: score the items whose rows don't travel from a silo's own histories.

Items with fewer holders than `federation.minimum_item_users` have no row in the shared model. A
silo still owns its users' histories. It computes an item-item model of its own over them and uses
it for these items alone. Nothing of it is sent, stored or exported.

Model: EASE ("Embarrassingly Shallow Autoencoders for Sparse Data", Steck 2019, section 3.1) over
the silo's users. X is users x items, 1 for an interaction, and

    P = (X^T X + lambda I)^-1,    B_ij = -P_ij / P_jj for i != j,    B_jj = 0.

A silo has few users and many items, so the inverse is taken over users (the dual form). By the
Woodbury identity, with K = X X^T + lambda I (n_users x n_users),

    P = (I - X^T K^-1 X) / lambda.

Let h be a history (1 x items), x_j the column of item j, and t = h X^T K^-1 (1 x n_users). Then

    (h P)_j = (h_j - t x_j) / lambda,    P_jj = (1 - x_j^T K^-1 x_j) / lambda,
    (h B)_j = h_j - (h P)_j / P_jj = h_j - (h_j - t x_j) / (1 - x_j^T K^-1 x_j).

The last fraction is the zero diagonal: no item scores itself. For user u of the silo h X^T is row u
of K - lambda I, so that t = e_u - lambda (K^-1)_u, without a product.

Only columns of items that `least` or more of the silo's own users hold are in X. Otherwise, one
user's rare history could show in another user's list. A score may still rest on one user that
holds two such items.

Everything is float64. The bits depend only on the histories, the machine and the threads of its
linear algebra. K and its inverse take 8 n_users^2 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import rate_of_users

REGULARISATION = 30.0
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Factors of local scores, of which validation chooses one. If 0, the tail is left out."""
MOST_USERS = 8_192
"""The maximum number of users of a silo. The inverse takes 512 MiB, and computing it 2 GiB."""
_CELLS_AT_ONCE = 1 << 22

Scores = Iterable[tuple[NDArray[np.int64], NDArray[np.float32]]]
"""Blocks of user positions and their scores (n_rows, n_items), -inf where the model has none."""


def check_tail_users(n_users: int) -> None:
    """Check that a silo is small enough for its users' matrix.

    Raises:
        SettingsError: the silo has more than `MOST_USERS` users.
    """
    if n_users > MOST_USERS:
        raise SettingsError(
            f"client.tail: this client has {n_users} users. Its own scores would take "
            f"{8 * n_users**2} bytes of memory. They are limited to {MOST_USERS} users.",
            remedy="Set client.tail = false, or divide the users among several clients.",
        )


class LocalTail:
    """A silo's own scores of the items that don't travel. See the module's docstring.

    Args:
        indptr, items: the users' histories as compressed sparse rows, as `UserSplit` has them.
        travelling: whether the shared model scores an item, bool (n_items,).
        least: own users that must hold an item for it to count.

    Attributes:
        rows: the scored items, ascending catalogue rows (n_tail,).

    Raises:
        SettingsError: there are more than `MOST_USERS` users.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        items: NDArray[np.int64],
        travelling: NDArray[np.bool_],
        least: int,
    ) -> None:
        n_users, n_items = len(indptr) - 1, len(travelling)
        check_tail_users(n_users)
        self._counts = np.bincount(items, minlength=n_items) >= least
        self.rows = np.nonzero(self._counts & ~travelling)[0]
        owner = np.repeat(np.arange(n_users), np.diff(indptr))
        kept = self._counts[items]
        self._owner, self._items = owner[kept], items[kept]
        place = np.full(n_items, -1)
        place[self.rows] = np.arange(len(self.rows))
        self._place, in_tail = place, place[self._items] >= 0
        self._holder, self._held = self._owner[in_tail], place[self._items[in_tail]]
        # Without a row to score nothing is computed.
        n_solved = n_users if len(self.rows) else 0
        self._inverse = _inverse(self._owner, self._items, n_solved)
        self._free = self._diagonal()

    def _diagonal(self) -> NDArray[np.float64]:
        """Return lambda P_jj of every scored item, (n_tail,)."""
        order = np.argsort(self._held, kind="stable")
        ends = np.cumsum(np.bincount(self._held, minlength=len(self.rows)))[:-1]
        free = np.empty(len(self.rows))
        for place, holders in enumerate(np.split(self._holder[order], ends)[: len(free)]):
            free[place] = 1.0 - self._inverse[np.ix_(holders, holders)].sum()
        return free

    def own(self, user_index: int) -> NDArray[np.float64]:
        """Return the scores for one of the users, by the history given, float64 (n_tail,)."""
        if not len(self.rows):
            return np.empty(0)
        weights = -REGULARISATION * self._inverse[user_index]
        weights[user_index] += 1.0
        begin, end = np.searchsorted(self._holder, [user_index, user_index + 1])
        return self._scores(weights, self._held[begin:end])

    def of(self, history: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the scores for any history, distinct catalogue rows, float64 (n_tail,)."""
        if not len(self.rows):
            return np.empty(0)
        has = np.zeros(len(self._counts), dtype=np.bool_)
        has[history] = True
        shared = np.bincount(self._owner[has[self._items]], minlength=len(self._inverse))
        place = self._place[history]
        return self._scores(shared @ self._inverse, place[place >= 0])

    def _scores(self, weights: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return h B. `weights` are t, and `held` the scored items in the history."""
        has = np.zeros(len(self.rows))
        has[held] = 1.0
        sums = np.bincount(self._held, weights=weights[self._holder], minlength=len(self.rows))
        return has - (has - sums) / self._free

    def add(self, scores: NDArray[np.float32], local: NDArray[np.float64], weight: float) -> None:
        """Give the items that don't travel their local scores, in place.

        Args:
            scores: the shared model's scores, (..., n_items). Other items' scores don't change.
            local: what `own` or `of` returned, (..., n_tail).
            weight: 0 leaves all scores as they are.
        """
        if weight > 0.0:
            scores[..., self.rows] = weight * local


def _inverse(
    owner: NDArray[np.int64], items: NDArray[np.int64], n_users: int
) -> NDArray[np.float64]:
    """Return (X X^T + lambda I)^-1, float64 (n_users, n_users).

    Common items are counted by a product over columns, rare ones holder by holder. All counts are
    whole numbers, so both give the same bits.
    """
    if not n_users:
        return np.empty((0, 0))
    order = np.argsort(items, kind="stable")
    users, sizes = owner[order], np.bincount(items)
    begins = np.cumsum(sizes) - sizes
    system = np.zeros((n_users, n_users))
    common = sizes > n_users // 8
    for item in np.nonzero((sizes > 0) & ~common)[0].tolist():
        holders = users[begins[item] : begins[item] + sizes[item]]
        system[np.ix_(holders, holders)] += 1.0
    at_once = max(1, _CELLS_AT_ONCE // n_users)
    wanted = np.nonzero(common)[0]
    for first in range(0, len(wanted), at_once):
        columns = np.zeros((n_users, min(at_once, len(wanted) - first)))
        for column, item in enumerate(wanted[first : first + at_once].tolist()):
            columns[users[begins[item] : begins[item] + sizes[item]], column] = 1.0
        system += columns @ columns.T
    system[np.diag_indices_from(system)] += REGULARISATION
    return np.asarray(np.linalg.inv(system), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFigures:
    """The tail's worth on a silo's validation items, under the protocol `full`.

    Attributes:
        weight: the chosen one of `WEIGHTS`.
        n_rows: items that don't travel and that enough own users hold.
        users: users with a validation item.
        at: the K of NDCG@K.
        shared_ndcg: NDCG@K of the shared model alone, or 0 if there are no such users.
        ndcg: NDCG@K of the shared model with the tail at this weight.
    """

    weight: float
    n_rows: int
    users: int
    at: int
    shared_ndcg: float
    ndcg: float

    def __str__(self) -> str:
        if not self.n_rows:
            return "not used: no item that doesn't travel has enough own users"
        if not self.users:
            return f"not used: no validation item to choose a weight for {self.n_rows} items with"
        used = f"weight {self.weight:g}" if self.weight else "not used (weight 0)"
        return (
            f"{used} for {self.n_rows} items that don't travel, chosen by {self.users} validation "
            f"items: NDCG@{self.at} {self.shared_ndcg:.4f} without them, {self.ndcg:.4f} with them"
        )


def weighed(tail: LocalTail, users: UserSplit, scores: Scores) -> NDArray[np.float64]:
    """Return validation ranks under each of `WEIGHTS`, float64 (n_weights, n_users).

    The protocol is `full`: every item is a candidate, except for the user's training items. A rank
    counts better items, and equal ones by half. It is -1 for users without a validation item.

    Args:
        users: the users of `tail`, whose training items are its histories.
        scores: blocks of these users' scores by the shared model.
    """
    ranks = np.full((len(WEIGHTS), len(users)), -1.0)
    for index, row in _rows(scores):
        wanted = users.validation_items[index]
        if wanted < 0:
            continue
        local, had = tail.own(index), users.train_of(index)
        for place, weight in enumerate(WEIGHTS):
            found = row.copy()
            tail.add(found, local, weight)
            found[had] = -np.inf
            own = found[wanted]
            # Training items are no candidates, not even among items without a score.
            equal = np.count_nonzero(found == own) - 1 - len(had) * int(own == -np.inf)
            ranks[place, index] = np.count_nonzero(found > own) + 0.5 * equal
    return ranks


def _rows(scores: Scores) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for rows, block in scores:
        yield from zip(rows.tolist(), block, strict=True)


def best_weight(ranks: NDArray[np.float64], at: int) -> int:
    """Return the place in `WEIGHTS` with the best mean NDCG@K, the smallest of equal ones.

    It is 0 if the gain over the shared model is within one standard error of the users' gains, as
    if a single user gained: few validation items would often choose a weight by chance.
    """
    ndcg = np.array([rate_of_users(row, at) for row in ranks])
    best = int(np.argmax(ndcg.sum(1)))
    gains = ndcg[best] - ndcg[0]
    # Rounding must not decide for a single user.
    return best if gains.sum() > (1.0 + 1e-9) * float(np.sqrt((gains**2).sum())) else 0


def figures_of(tail: LocalTail, ranks: NDArray[np.float64], at: int) -> TailFigures:
    """Return the weight that validation ranks choose, and what it is worth on them.

    Args:
        ranks: what `weighed` returned.
    """
    chosen, users = best_weight(ranks, at), int((ranks[0] >= 0).sum())
    first, best = (float(rate_of_users(ranks[row], at).sum()) for row in (0, chosen))
    return TailFigures(
        weight=WEIGHTS[chosen],
        n_rows=len(tail.rows),
        users=users,
        at=at,
        shared_ndcg=first / max(users, 1),
        ndcg=best / max(users, 1),
    )


def crossed(ranks: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """Return each user's rank under the weight that the other half of the users chose, (n_users,).

    The weight that is best on some users looks better on them than it is. Here no user's item had
    a part in the choice that it is ranked under.

    Args:
        ranks: what `weighed` returned.
    """
    found: NDArray[np.float64] = ranks[0].copy()
    measured = np.nonzero(ranks[0] >= 0)[0]
    for half, other in ((measured[::2], measured[1::2]), (measured[1::2], measured[::2])):
        found[half] = ranks[best_weight(ranks[:, other], at), half]
    return found
