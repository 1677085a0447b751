"""Check an opened sum against the largest sum that its contributors' users could reach.

No party sees a single client's contribution, so a client with modified software may add anything.
Honest users' values are clipped to a public range. Every party that opens or applies a sum checks
it value by value. It checks the number of users first, then the users that touched each row, then
the values that this number of users can reach. A tensor's `counted_by` names the number that bounds
it. The divisor of a mean is bounded too, because a client that chooses the divisor chooses the
mean.

These checks don't stop a client from using the room that others leave. Within the bounds, it can
set the mean of any row to any value in the range of one user.

Temporary memory: arrays with one value for each row, and a few of 2^18 values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import (
    HOLDER_PAIRS,
    HOLDERS,
    MEASURED,
    TRAINED,
    UpdateTensor,
)
from fedrec.errors import SumOutOfBounds
from fedrec.evaluation.metrics import METRIC_NAMES, largest_sums
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.protection.vector import Packed
from fedrec.wire.messages import RoundKind

Integers = NDArray[np.int64]

_VALUES_AT_ONCE = 1 << 18
_REMEDY = (
    "A contributor sent values that no honest client can. The round was abandoned, and nothing was "
    "applied. If it happens again, the data owners must find the client with changed software."
)


def most_users(plan: Plan, roster: Roster, clients: Iterable[ClientId]) -> int:
    """Return the largest number of users that these members can have together."""
    if algorithm_of(plan, 1).derived.personalises:
        return len(list(clients))
    most = plan.federation.maximum_users
    caps = (roster.partition.standing(client_id) for client_id in clients)
    own = (most if found is None else found.users_cap or most for found in caps)
    return min(most, sum(min(most, each) for each in own))


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms:
    """The terms that bound a round's sum.

    Attributes:
        kind: the kind of the round.
        layout: the layout of its vector.
        rows: the items that it covers.
        most_users: the largest number of users that its contributors can have.
        n_clients: the number of contributors.
        holders: the holders of each item of the catalogue by the last count round, (n_items,), or
            None before it. They bound the rows of sums that don't count holders themselves.
        least: the minimum number of holders of an item whose row may be nonzero.
        begun: the number of pairs that earlier rounds summed, by tensor of item pairs.
    """

    kind: RoundKind
    layout: Layout
    rows: ActiveRows
    most_users: int
    n_clients: int
    holders: Integers | None = None
    least: int = 0
    begun: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def check_sum(
    terms: SumTerms, changes: Mapping[str, Packed], counts: Packed, metrics: Packed
) -> None:
    """Refuse a sum that honest clients can't add up to.

    It is checked in parts, which may be packed.

    Args:
        changes: the tensors by name, of any shape.

    Raises:
        SumOutOfBounds: a value is out of bounds. The error names the tensor, the row, the value and
            the allowed range.
    """
    check = _Check(terms, changes, counts, metrics)
    layout, is_exact = terms.layout, terms.layout.mechanism is None
    trains = terms.kind == "train"
    check.metrics(are_there=terms.kind != "count" and is_exact)
    trained = int(metrics[0]) if trains else 0
    most = {"train": trained, "count": terms.most_users, "evaluate": 0}[terms.kind]
    check.counts(most if is_exact else 0)
    numbers = {TRAINED: trained, MEASURED: terms.most_users}
    for tensor in sorted(layout.tensors, key=_depends):
        own = check.table(tensor)
        if not trains:
            check.values(tensor, own, 0)
        elif not is_exact:
            check.values(tensor, own, check.noisy(tensor))
        elif tensor.counted_by == HOLDERS:
            check.values(tensor, own, check.holders[:, None], tensor.bound)
        elif tensor.counted_by == HOLDER_PAIRS:
            check.pairs(tensor, own)
        elif tensor.counted_by in numbers:
            check.values(tensor, own, numbers[tensor.counted_by], tensor.bound)
        else:
            divisor = next(one for one in layout.tensors if one.name == tensor.counted_by)
            found = check.table(divisor)
            times = found if divisor.per_item else int(found[0, 0])
            check.values(tensor, own, times, tensor.bound // divisor.bound)


def _depends(tensor: UpdateTensor) -> bool:
    """Put divisors first."""
    return tensor.counted_by not in (TRAINED, MEASURED, HOLDERS, HOLDER_PAIRS)


class _Check:
    """The parts of `check_sum`, each of which refuses the sum.

    Attributes:
        holders: the users of every row, with zeros for rows without an item.
    """

    def __init__(
        self, terms: SumTerms, changes: Mapping[str, Packed], counts: Packed, metrics: Packed
    ) -> None:
        self._terms = terms
        self._layout = layout = terms.layout
        self._metrics = metrics
        self._counts = counts
        self._changes = {
            tensor.name: changes[tensor.name].reshape(tensor.shape) for tensor in layout.tensors
        }
        self.holders = np.zeros(layout.n_rows, dtype=np.int64)

    def table(self, tensor: UpdateTensor) -> Packed:
        """Return a tensor's sum with a row for each item, or for each value without item rows."""
        values = self._changes[tensor.name]
        return values.reshape(len(values) if tensor.per_item else values.size, -1)

    def metrics(self, *, are_there: bool) -> None:
        terms = self._terms
        largest = largest_sums(
            self._metrics,
            most_users=terms.most_users,
            n_parties=terms.n_clients,
            trains=terms.kind == "train",
        )
        wrong = (self._metrics < 0) | (self._metrics > largest * are_there)
        if wrong.any():
            place = int(np.argmax(wrong))
            allowed = int(largest[place]) * are_there
            raise self._error(METRIC_NAMES[place], int(self._metrics[place]), 0, allowed)

    def counts(self, most: int) -> None:
        """Check the holders that a sum counts, and find the numbers that bound its rows."""
        terms, n_active = self._terms, len(self._terms.rows.index)
        counts_rows = terms.kind == "count" or self._layout.counts_rows
        most = most if counts_rows else 0
        wrong = (self._counts < 0) | (self._counts > most)
        wrong[n_active:] |= self._counts[n_active:] != 0
        if wrong.any():
            row = int(np.argmax(wrong))
            allowed = most if row < n_active else 0
            raise self._error("counts", int(self._counts[row]), 0, allowed, row)
        if counts_rows:
            self.holders[:] = self._counts
        elif terms.holders is not None:
            held = terms.holders[terms.rows.index]
            # A user that was counted but didn't train is in no row.
            trained = int(self._metrics[0])
            self.holders[:n_active] = np.where(held < terms.least, 0, np.minimum(held, trained))

    def noisy(self, tensor: UpdateTensor) -> int:
        """Return the largest sum of clipped users' values and all clients' noise."""
        mechanism = self._layout.mechanism
        if mechanism is None or not tensor.signed:
            return 0
        of_users = self._terms.most_users * min(tensor.bound, mechanism.bound)
        n_values = self._layout.change_slice.stop
        return of_users + mechanism.reach(self._terms.n_clients, n_values)

    def pairs(self, tensor: UpdateTensor, own: Packed) -> None:
        """Compare each pair's users with those of the rarer one of its items."""
        first = self._terms.begun.get(tensor.name, 0)
        for part, lower, upper in pairs_of(first, len(own)):
            known = upper < len(self.holders)
            most = np.minimum(self.holders[upper * known], self.holders[lower * known]) * known
            self.values(tensor, own[part], most[:, None], tensor.bound, part.start)

    def values(
        self,
        tensor: UpdateTensor,
        own: Packed,
        times: int | Packed,
        of_one: int = 1,
        first_row: int = 0,
    ) -> None:
        """Check values, (n_rows, width), against the largest sum that a number of users can reach.

        Args:
            times: the number of users, for all values or (n_rows, 1 or width).
            of_one: the largest value that one user adds.
            first_row: the position of the first row in the tensor.
        """
        n_active = len(self._terms.rows.index) if tensor.per_item else len(own)
        for part in _blocks(own):
            values = own[part]
            many = times if isinstance(times, int) else times[part]
            high = np.broadcast_to(np.asarray(many, dtype=np.int64) * of_one, values.shape).copy()
            low = -high if tensor.signed else np.zeros_like(high)
            high[max(0, n_active - part.start) :] = 0
            low[max(0, n_active - part.start) :] = 0
            wrong = (values < low) | (values > high)
            if wrong.any():
                row, column = (int(at[0]) for at in np.nonzero(wrong))
                raise self._error(
                    tensor.name,
                    int(values[row, column]),
                    int(low[row, column]),
                    int(high[row, column]),
                    first_row + part.start + row if len(own) > 1 else None,
                    per_item=tensor.per_item,
                )

    def _error(
        self,
        name: str,
        value: int,
        low: int,
        high: int,
        row: int | None = None,
        *,
        per_item: bool = True,
    ) -> SumOutOfBounds:
        index, where = self._terms.rows.index, ""
        if row is not None:
            where = f" at position {row}"
            if per_item:
                inside = row < len(index)
                where = f" of item row {int(index[row])}" if inside else f" of padding row {row}"
        return SumOutOfBounds(
            f"In the sum of a round of kind {self._terms.kind}, {name}{where} is {value}, but the "
            f"allowed range is {low} to {high}.",
            remedy=_REMEDY,
        )


def pairs_of(first: int, n_pairs: int) -> Iterator[tuple[slice, Integers, Integers]]:
    """Yield parts of a tensor of item pairs, each with the rows of its pairs' two items.

    Args:
        first: the number of pairs that earlier rounds summed (see `HOLDER_PAIRS`).
    """
    for begin in range(0, n_pairs, _VALUES_AT_ONCE):
        part = slice(begin, min(begin + _VALUES_AT_ONCE, n_pairs))
        pair = np.arange(first + part.start, first + part.stop)
        upper = np.floor((1.0 + np.sqrt(8.0 * pair + 1.0)) / 2.0).astype(np.int64)
        # Square roots of large numbers have an error below one.
        upper -= upper * (upper - 1) // 2 > pair
        upper += upper * (upper + 1) // 2 <= pair
        yield part, pair - upper * (upper - 1) // 2, upper


def _blocks(own: Packed) -> Iterator[slice]:
    """Yield parts of rows that are small compared with the sum."""
    at_once = max(1, _VALUES_AT_ONCE // max(1, own.shape[1]))
    for begin in range(0, len(own), at_once):
        yield slice(begin, begin + at_once)
