"""Participate in a round: choose users, train, protect, sign, store, send."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import ConflictingUpload, RoundClosed, RoundError, TaskRefused
from fedrec.follower.round_terms import AnnouncedRound
from fedrec.ids import RoundId, UserId, canonical
from fedrec.plan.algorithm import divides_by_count
from fedrec.wire.fields import NONCE_BYTES
from fedrec.wire.messages import StepTask, Train, UploadHeader
from fedrec_client.round.local_model import ClientContext
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore

if TYPE_CHECKING:
    from fedrec.training.learner import Contribution


_RECORD = "selection_secret"
SECRET_BYTES = 32


def selection_secret(store: PrivateStore) -> bytes:
    """Return this client's own secret, 32 bytes, created at first use and kept permanently."""
    secret = store.own(_RECORD)
    if secret is None:
        secret = secrets.token_bytes(SECRET_BYTES)
        store.keep_own(_RECORD, secret)
    return secret


def select_users(
    secret: bytes, run: str, number: int, user_ids: Sequence[UserId], fraction: float
) -> NDArray[np.bool_]:
    """Return the participating users, bool of shape (n_users,).

    A user's draw is the first 8 bytes of HMAC-SHA256 over run, number and user, read as a fraction
    of 2^64. The user participates if it is below `fraction`.
    """
    if fraction >= 1.0:
        return np.ones(len(user_ids), dtype=np.bool_)
    prefix = canonical("fedrec coin v1", run, number)
    draws = b"".join(
        [hmac.digest(secret, prefix + canonical(user), "sha256")[:8] for user in user_ids]
    )
    values = np.frombuffer(draws, dtype=">u8").astype(np.float64)
    return values < fraction * 2.0**64


Delivery = Literal["accepted", "duplicate", "closed", "conflict"]
_TOLD: dict[Delivery, Literal["sent", "closed"]] = {
    "accepted": "sent",
    "duplicate": "sent",
    "closed": "closed",
    "conflict": "closed",
}


class Participation:
    """Answers a round with exactly one update, whatever happens in between."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._membership = context.membership
        self._model = context.model
        self._store = context.store
        self._journal = context.journal

    def take_part(self, task: Train) -> bool:
        """Send this client's update for a round, made now or before a crash.

        Returns:
            Whether the coordinator has it.

        Raises:
            RoundError: the round is not one that follows from the local model.
            TaskRefused: the update would reveal more than this client agreed to.
        """
        staged, made = self._store.state.staged, None
        if staged is None or staged.header.round != task.round:
            self.check(task)
            self.give_up_before(task)
            made = self._make(task)
        elif _about(staged.header) != _about(task):
            # A restored coordinator used a number again.
            raise TaskRefused(
                f"Round {task.round} was already answered with another kind, model or key epoch."
            )
        return self.send(made)

    def advance(self, task: StepTask) -> bool:
        """Refuse: these rounds have a single step, which `take_part` takes.

        Raises:
            RoundError: always.
        """
        raise RoundError(f"This client does not participate in steps of round {task.round}.")

    def send(self, made: bytes | None = None) -> bool:
        """Deliver the staged update, with the same bytes every time.

        A late update is kept until the round's end is known: only the list of contributions shows
        whether it was counted.

        Args:
            made: the update, if it was made just now and need not be read again.

        Returns:
            Whether the coordinator has it.
        """
        staged = self._store.state.staged
        if staged is None:
            return False
        delivery: Delivery = "closed"
        if not staged.closed:
            update = made or self._store.read(staged.update)
            try:
                duplicate = self._context.link.submit_update(staged.header, update)
                delivery = "duplicate" if duplicate else "accepted"
            except RoundClosed:
                pass
            except ConflictingUpload:
                delivery = "conflict"
                self._refused(staged.header.round)
            has_it = delivery in ("accepted", "duplicate")
            self._store.mark_staged(acknowledged=has_it, closed=not has_it)
        self._journal.tell(_TOLD[delivery], staged.header.round, detail=delivery)
        return _TOLD[delivery] == "sent"

    def _refused(self, round_id: RoundId) -> None:
        """Record that the coordinator refused an update because it has a different one."""
        error = ConflictingUpload(
            f"The coordinator has a different update of this client for round {round_id}.",
            remedy="Check that no copy of this state folder is in use elsewhere.",
        )
        self._context.refused("conflicting_upload", round_id, error)

    def give_up_before(self, task: Train) -> None:
        """Roll back an earlier round that ended without being published."""
        before = self._store.in_progress
        if before is not None and before < task.round:
            self._store.roll_back()
            self._journal.settle(before, "abandoned")

    def check(self, task: Train) -> None:
        """Refuse a round that does not follow from the local model, or was already answered.

        Raises:
            RoundError: it does not follow from the local model, or was already answered.
            TaskRefused: items are counted twice, or trained before they are counted.
        """
        if task.base_round != self._model.version or task.round <= self._model.version:
            raise RoundError(
                f"Round {task.round} starts from version {task.base_round}, but this client has "
                f"version {self._model.version}."
            )
        counted = self._model.shared.holders is not None
        plan = self._membership.plan
        divides = divides_by_count(plan)
        needed = plan.federation.minimum_item_users > 1 or divides
        if task.kind == "count" and counted and not divides:
            raise TaskRefused(f"Round {task.round} counts items, but they are already counted.")
        if task.kind != "count" and needed and not counted:
            raise TaskRefused(
                f"Round {task.round} is of kind {task.kind}, but items are not counted yet, so "
                "rows of rare items would be trained (federation.minimum_item_users)."
            )
        if task.round <= self._store.state.answered_round:
            raise RoundError(
                f"Round {task.round} is over: this client already answered round "
                f"{self._store.state.answered_round}."
            )

    def train(self, task: Train) -> tuple[AnnouncedRound, Contribution, bytes | None]:
        """Return the round as this client signs it, its contribution, and the privacy ledger.

        If sums carry noise, this client's share is already in the vector. The ledger, which charges
        its users for it, must be stored with it before it is sent. Without noise it is None.
        """
        member = self._membership
        terms = self._model.terms(task.round, task.kind)
        # Counting and measuring cover all users. The selection applies to training only.
        participating = None
        mechanism = member.layout.mechanism if task.kind == "train" else None
        if task.kind == "train" and member.plan.rounds.user_fraction < 1.0:
            # When an abandoned round is repeated, it covers the same users: two sums reveal no more
            # than one. Under noise every release is accounted as its own draw.
            thrown = task.round if mechanism is not None else self._model.shared.number
            participating = select_users(
                selection_secret(self._store),
                member.run,
                thrown,
                self._model.users.user_ids,
                member.plan.rounds.user_fraction,
            )
        spent, charged = PrivacyLedger.of(self._store), None
        if mechanism is not None:
            users, part = self._model.training_users.user_ids, self._model.shared.trained
            participating = spent.affordable(mechanism, member.run, users, participating, part)
            paid = spent.charged(mechanism, member.run, users, participating, part)
            charged = paid.to_bytes()
        self._journal.tell("training", task.round, detail=task.kind)
        with self._journal.timed(task.round, "seconds_training", "trained"):
            made = self._model.contribute(task.kind, participating)
        if made.abstained:
            self._journal.tell("diverged", task.round, detail=made.abstained)
        if mechanism is not None:
            # Also if no user participates: the other clients' guarantee counts on this share.
            made = replace(made, vector=member.layout.add_noise(made.vector))
        return terms, made, charged

    def _make(self, task: Train) -> bytes:
        """Return a round's update, after staging it."""
        member = self._membership
        terms, made, charged = self.train(task)
        with self._journal.timed(task.round, "seconds_protecting", "protected"):
            # The tags of two updates under the same name would reveal facts about their difference.
            nonce = secrets.token_bytes(NONCE_BYTES) if member.is_tagged else b""
            name = member.tag_name(task.round, member.client_id, nonce)
            vector = self._model.vector(task.kind)
            payload = vector.member.protect(made.vector, name)
            header = member.header_for(terms, payload, nonce)
        self._store.stage(header, payload, made.private.parts(), spent=charged)
        return payload


def _about(round_: Train | UploadHeader) -> tuple[str, int, int]:
    return round_.kind, round_.base_round, round_.epoch
