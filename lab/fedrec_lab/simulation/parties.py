"""The clients of a simulated federation: their users, their learner, their private state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.cluster.engine import engine_of
from fedrec.data.interactions import user_groups
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import Protocol
from fedrec.ids import RoundId
from fedrec.model.blocked_table import BLOCK_BYTES
from fedrec.model.state import PrivateState, SharedState
from fedrec.model.tables import NewTable, TableRoom
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.exposure import check_own_floor
from fedrec.plan.travelling_rows import Cells, OwnRows, own_rows_of
from fedrec.random_streams import Purpose, stream_key, uniform, user_stream
from fedrec.settings.schema import Settings
from fedrec.training.evaluator import Evaluator
from fedrec.training.learner import Contribution, Learner
from fedrec.training.user_half import Resources
from fedrec.wire.messages import RoundKind

_MAX_CLIENTS = 100_000


def simulated_participants(
    user_keys: NDArray[np.int64],
    *,
    seed: int,
    round_id: RoundId,
    fraction: float,
    counted: bool = False,
) -> NDArray[np.bool_] | None:
    """Return the users that take part in a round, bool (n_users,), or None for all.

    Args:
        user_keys: identities of all users of the federation, int64 (n_users,).
        counted: take exactly that share of the users, rounded down but at least one, instead of a
            coin for each.

    In a real federation a client's own secret keys the coin. Here it is the public seed, so that
    the result does not depend on how users are grouped.
    """
    if fraction >= 1.0:
        return None
    keys = user_stream(stream_key(seed, Purpose.SELECTION, round_id), user_keys)
    drawn = uniform(keys, np.zeros(len(user_keys), dtype=np.int64))
    if not counted:
        return drawn < fraction
    chosen = np.zeros(len(user_keys), dtype=np.bool_)
    # Equal numbers are ordered by the users' keys, whatever the order of the users.
    order = np.lexsort((user_keys, drawn))
    # As a decimal: .29 of 100 users are 29, and not 28 as in binary.
    n_chosen = int(Decimal(repr(fraction)) * len(user_keys))
    chosen[order[: max(1, n_chosen)]] = True
    return chosen


class Party:
    """One client: some of the users, and a learner of its own.

    Args:
        user_index: positions of its users among all users of the simulation.
        alone: whether it is the only client. Then local-only training is not a reference.
        own_rows: the item rows that it contributes to. See `client.minimum_own_item_users`.
    """

    def __init__(
        self,
        learner: Learner,
        users: UserSplit,
        user_index: NDArray[np.int64],
        *,
        alone: bool,
        own_rows: OwnRows = None,
    ) -> None:
        self._own_rows = own_rows
        self.learner = learner
        self.users = users
        self.user_index = user_index
        self.alone = alone
        self._private: PrivateState | None = None
        self._evaluator = Evaluator(learner.local)

    @property
    def private(self) -> PrivateState:
        """Its users' own parameters. The first ones are drawn when they are first needed."""
        if self._private is None:
            self._private = self.learner.local.initial_private(self.users)
        return self._private

    @private.setter
    def private(self, private: PrivateState) -> None:
        self._private = private

    def contribute(
        self,
        kind: RoundKind,
        number: int,
        shared: SharedState,
        participating: NDArray[np.bool_] | None,
    ) -> Contribution:
        """Return this party's part of a round, without changing its own state.

        Args:
            participating: a mask over all users of the simulation.
        """
        layout = self.learner.server.travelling.layout(kind, shared)
        if not len(self.users):
            nothing = np.zeros(layout.length, dtype=np.int64)
            return Contribution(vector=nothing, private=self.private, n_clipped=0)
        if kind == "evaluate" and self.alone:
            also = self._evaluator.measure_all(
                shared, self.users, self.private, references=True, number=number, local=False
            )
            vector = np.zeros(layout.length, dtype=np.int64)
            measured = also.pop(self.learner.server.plan.evaluation.protocol)
            withheld = None if layout.mechanism is None else measured
            if withheld is None:
                vector[layout.metrics_slice] = measured
            return Contribution(
                vector=vector, private=self.private, n_clipped=0, also=also, withheld=withheld
            )
        chosen = None if participating is None else participating[self.user_index]
        return self.learner.contribute(
            kind,
            number,
            shared,
            self.users,
            self.private,
            chosen,
            abstains=not self.alone,
            own_rows=self._own_rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The parties that a simulation plays.

    Attributes:
        n_clients: the number of parties among which users are divided.
        cells: the partition of the parties into cells. Empty for the plan's own.
        protect: protect, add and open every round's updates, which takes time and changes no bit.
    """

    n_clients: int = 1
    cells: Cells = ()
    protect: bool = False


def make_parties(
    settings: Settings,
    n_items: int,
    users: UserSplit,
    n_clients: int,
    *,
    also: Sequence[Protocol] = (),
    scratch: Path | None = None,
) -> list[Party]:
    """Divide the users among `n_clients` parties.

    Args:
        also: protocols to measure under besides the plan's protocol.
        scratch: folder for files. See `Resources`.
    """
    client, groups = settings.client, _groups(users, n_clients)
    resources = replace(
        Resources.of(client),
        scratch=scratch,
        # The tables of all parties together take no more memory than one party's would.
        table_bytes=(client.memory_mib << 20) // n_clients,
        # Parties train one after the other, in the same processes.
        workers=engine_of(client, folder=scratch),
        n_learners=n_clients,
    )
    # Drawn once, because over a large catalogue it takes longer than a round.
    initial = cache(algorithm_of(settings.plan, n_items).derived.initial_shared)
    return [
        Party(
            Learner(
                settings.plan,
                n_items,
                device=client.device,
                resources=resources,
                also=also,
                measure_withheld=True,
                initial=initial,
            ),
            own,
            group,
            alone=n_clients == 1,
            own_rows=own_rows_of(own.item_counts(n_items), client.minimum_own_item_users),
        )
        for group in groups
        for own in (users if n_clients == 1 else users.select(group),)
    ]


def _groups(users: UserSplit, n_clients: int) -> list[NDArray[np.int64]]:
    if n_clients < 1:
        raise SettingsError(f"n_clients is {n_clients}.", remedy="Ask for 1 client or more.")
    if n_clients > _MAX_CLIENTS:
        raise SettingsError(
            f"n_clients is {n_clients}.", remedy=f"Ask for at most {_MAX_CLIENTS:,} clients."
        )
    if n_clients == 1:
        return [np.arange(len(users), dtype=np.int64)]
    return user_groups(users.user_ids, n_clients)


def counted_holders(
    settings: Settings, n_items: int, users: UserSplit, n_clients: int
) -> NDArray[np.int64]:
    """Return the result of the parties' count round: holders of each item, int64 (n_items,).

    Raises:
        RefusedError: a party has fewer users than `client.minimum_own_item_users`.
    """
    least = settings.client.minimum_own_item_users
    if least == 1:
        return users.item_counts(n_items)
    total = np.zeros(n_items, dtype=np.int64)
    for group in _groups(users, n_clients):
        if len(group):
            check_own_floor(least, len(group))
        own = users.select(group).item_counts(n_items)
        total += np.where(own >= least, own, 0)
    return total


def join_private(
    parties: Sequence[Party], states: Sequence[PrivateState], room: TableRoom
) -> PrivateState:
    """Return the parties' private states as one, in the order of all users."""
    if len(parties) == 1:
        return states[0]
    joined = room.new(sum(len(party.user_index) for party in parties), states[0].widths())
    for party, state in zip(parties, states, strict=True):
        _copy(state, joined, from_rows=np.arange(len(party.user_index)), to_rows=party.user_index)
    return PrivateState.of({name: table.finish() for name, table in joined.items()})


def split_private(party: Party, private: PrivateState) -> PrivateState:
    """Return one party's share of all users' private state, in the same place."""
    if party.alone:
        return private.in_room(party.learner.local.room)
    own = party.learner.local.room.new(len(party.user_index), private.widths())
    _copy(private, own, from_rows=party.user_index, to_rows=np.arange(len(party.user_index)))
    return PrivateState.of({name: table.finish() for name, table in own.items()})


def _copy(
    state: PrivateState,
    tables: Mapping[str, NewTable],
    *,
    from_rows: NDArray[np.int64],
    to_rows: NDArray[np.int64],
) -> None:
    for name, values in state.tensors.items():
        at_once = max(1, BLOCK_BYTES * len(values) // max(1, values.nbytes))
        for begin in range(0, len(from_rows), at_once):
            part = slice(begin, begin + at_once)
            tables[name].write(to_rows[part], values[from_rows[part]])
