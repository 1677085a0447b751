"""The model on this machine: the published part, and the private part of its users."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import structlog
from numpy.typing import NDArray

from fedrec.data import UserSplit
from fedrec.errors import ProtocolError
from fedrec.evaluation.metrics import MetricSums
from fedrec.follower.membership import Membership
from fedrec.follower.shared_model import RoundContext, SharedModel
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.algorithm import divides_by_count
from fedrec.plan.planned_noise import is_one_release
from fedrec.plan.travelling_rows import OwnRows, own_rows_of
from fedrec.training.personalising import among_all
from fedrec.wire.messages import RevealStatement, RoundKind
from fedrec_client.state.client_state import BestModel
from fedrec_client.state.counted_data import CountedData
from fedrec_client.state.private_store import PrivateStore

if TYPE_CHECKING:
    from fedrec.training.learner import Contribution, Learner


_NOTHING: Mapping[str, bytes] = MappingProxyType({})
_log = structlog.get_logger("fedrec.client")


class LocalModel(SharedModel):
    """Shared and private state at the store's version."""

    _store: PrivateStore

    def __init__(
        self,
        membership: Membership,
        learner: Learner,
        users: UserSplit,
        store: PrivateStore,
        *,
        floor: int = 1,
    ) -> None:
        super().__init__(membership, learner.server, store)
        self._floor = floor
        self._learner = learner
        self._private: PrivateState | None = None
        self._counted: CountedData | None = None
        self._own_rows: OwnRows = None
        self.users = users

    @property
    def private(self) -> PrivateState:
        """The committed private state."""
        if self._private is None:
            ref = self._store.state.private
            self._private = (
                self._learner.local.initial_private(self.users)
                if ref is None
                else self._store.read_private(ref).in_room(self._learner.local.room)
            )
        return self._private

    @property
    def training_users(self) -> UserSplit:
        """The users that train, with their data.

        If all noisy sums of a run are parts of one release, it is the data at the first part: a
        history that changed between parts would contribute more than the clip.
        """
        if not is_one_release(self._learner.server.plan):
            return self.users
        frozen = self._last_counted(whole=True).users
        return self.users if frozen is None else frozen

    def contribute(self, kind: RoundKind, participating: NDArray[np.bool_] | None) -> Contribution:
        """Train, count or evaluate for a round. The data behind exact sums is recorded.

        Args:
            participating: a mask over `training_users` if sums carry noise, else over `users`.
        """
        learner, shared, plan = self._learner, self.shared, self._learner.server.plan
        users, private = self.users, self.private
        exact, frozen = divides_by_count(plan), is_one_release(plan)
        is_counted = plan.privacy.mechanism == "none" and (exact or kind == "count")
        if frozen and kind == "train":
            users = self.training_users
            if users is not self.users:
                private = learner.local.initial_private(users)
        elif is_counted or self._floor > 1:
            counted = self._last_counted(whole=exact or frozen)
            if kind == "count" and is_counted:
                enough = counted.counts >= counted.floor
                return learner.counted(shared, np.where(enough, counted.counts, 0), private)
            if exact and counted.users is not None and counted.users is not users:
                users, private = counted.users, learner.local.initial_private(counted.users)
        made = learner.contribute(
            kind,
            shared.number,
            shared,
            users,
            private,
            participating,
            abstains=True,
            own_rows=self._own_rows,
        )
        return made if users is self.users else replace(made, private=self.private)

    def _last_counted(self, *, whole: bool) -> CountedData:
        """Return the counts to send about these users, given earlier counts. Record them first.

        Args:
            whole: whether more than counts is sent.
        """
        if self._counted is not None:
            return self._counted
        state, least = self._store.state, self._learner.server.plan.federation.minimum_new_users
        item_ids = self._membership.catalogue.item_ids
        counted = CountedData.of(
            self.users, item_ids, run=state.pin.run, whole=whole, floor=self._floor
        )
        today = counted
        if state.counted is not None:
            before = CountedData.from_bytes(self._store.read(state.counted))
            # Noise covers a change between runs. Within one, no contribution may change.
            is_noisy = self._learner.server.plan.privacy.mechanism != "none"
            if before.run == counted.run if is_noisy else before.is_kept_over(counted, least):
                n_differing = before.differing(counted)
                if n_differing:
                    why = "former counts apply"
                    _log.warning(why, users_that_differ=n_differing, needed=least)
                    counted = before.over(counted)
            counted = counted.with_floor_of(before)
        self._store.keep_counted(counted.to_bytes())
        self._counted = counted
        # It uses the counted data, so no row returns within a run, and today's users if it is they
        # that train.
        holders = counted.counts if whole else np.minimum(counted.counts, today.counts)
        self._own_rows = own_rows_of(holders, counted.floor)
        return counted

    def publish(
        self,
        round_id: RoundId,
        shared: SharedState,
        *,
        metrics: NDArray[np.int64],
        statement: RevealStatement | None = None,
        counted: bool = False,
        received: Mapping[str, bytes] = _NOTHING,
    ) -> None:
        """Move to a published round and keep the model that it measured, if it is the best.

        If it counts, the users' training results of the round are read again.

        Args:
            received: what the server computed for this client's user, by parameter.

        Raises:
            ProtocolError: the received values don't fit the model.
        """
        private = self._with(received) if any(received.values()) else None
        if counted:
            self._private = None
        self._store.publish(
            round_id,
            self._parts(shared),
            metrics=metrics.astype("<i8").tobytes(),
            statement=statement,
            counted=counted,
            private=None if private is None else private.parts(),
            best=self._better(metrics),
        )
        self._continue_from(round_id, shared, metrics)

    @property
    def received(self) -> tuple[str, ...]:
        """The parameters that the server computes for a client's user."""
        entries = self._half.algorithm.parameters
        return tuple(entry.name for entry in entries if entry.received)

    def _with(self, received: Mapping[str, bytes]) -> PrivateState:
        """Return the staged private state with the values that the server computed."""
        staged, active = self._store.state.staged, self._half.active_items(self.shared)
        assert staged is not None
        tensors = dict(self._store.read_private(staged.private).arrays())
        for name, data in received.items():
            whole = tensors[name].copy()
            values = np.frombuffer(data, dtype="<f4")
            if not data:
                continue
            shape = (1, len(active), *whole.shape[2:])
            if len(whole) != 1 or values.size != math.prod(shape) or not np.isfinite(values).all():
                raise ProtocolError(
                    f"The server computed {values.size} values of {name}, but finite values of the "
                    f"shape {shape} were expected."
                )
            tensors[name] = among_all(whole, active, values.reshape(shape))
        return PrivateState.of(tensors)

    def _better(self, metrics: NDArray[np.int64]) -> BestModel | None:
        """Return the current model if the round measured it as the best so far.

        A round measures the model from which it started. A model without a contribution of these
        users is not kept: it knows nothing of them, however good it is for others.
        """
        state = self._store.state
        sums = MetricSums(metrics)
        rates = sums.rates("model", "validation")
        if rates is None or state.shared is None or state.private is None:
            return None
        if state.best is not None and rates.ndcg <= state.best.validation.ndcg:
            return None
        return BestModel(
            round=state.version,
            validation=rates,
            test=sums.rates("model", "test"),
            shared=state.shared,
            private=state.private,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientContext(RoundContext):
    """The tools for a client's work in one run and key epoch."""

    model: LocalModel
    store: PrivateStore
