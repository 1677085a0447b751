"""Catching up: every published round is checked, applied and committed before the next task.

A coordinator that publishes anything but what the key authority signed is refused: the client
writes it to the audit log and stops, its model as it was. In the papers' protocol it decrypts the
sum itself, refuses what no honest clients add up to, and reports what it found. A snapshot is made
by one member, whom nobody has to believe: a wrong one is written to the audit log, too, and passed
over for another one, or for the rounds.
"""

from __future__ import annotations

import hmac

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import (
    BadSignature,
    PartialCell,
    ProtocolError,
    RefusedError,
    RoundError,
    StorageError,
)
from fedrec.follower.shared_model import RoundContext
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.plan.layout import METRICS_SLICE
from fedrec.training.server_half import shape_problem
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import MAX_REFUSED
from fedrec.wire.messages import PublishedRound, Snapshot, manifest_digest


class CatchingUp:
    """Brings the local model to the last published round."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._membership = context.membership
        self._link = context.link
        self._model = context.model
        self._store = context.store
        self._journal = context.journal
        self._waits = False
        self._reported = RoundId(0)
        self._refused_snapshots: tuple[bytes, ...] = ()

    def catch_up(self, published: RoundId) -> None:
        """Take every round that was published since the model's version.

        Args:
            published: the last round that the coordinator says it published.

        Raises:
            RefusedError: a round that nobody vouches for, or that does not add up.
            ProtocolError: a round that cannot be read.
        """
        if self._model.version == 0 and published > 1:
            self._take_snapshot()
        while self._model.version < published:
            found = self._link.published(
                self._membership.client_id, self._membership.run, self._model.version
            )
            if found is None:
                self._pass_over(f"the sum of the round after version {self._model.version} is gone")
                return
            if found.epoch > self._membership.epoch:
                # Enrolling in that epoch comes first; the coordinator says that it began.
                return
            if found.epoch == self._membership.epoch:
                self._take(found)
            elif not self._cross_epochs(found):
                return

    def report(self, published: RoundId) -> None:
        """Tell what the last round measured, where that is for clients to tell; once a session.

        Args:
            published: the last round, as far as it is known.
        """
        member, round_id, metrics = self._membership, self._model.version, self._store.state.metrics
        is_new = self._reported < round_id == published
        if not (member.shares_key and metrics and is_new):
            return
        shared = self._model.shared
        rows = self._model.rows_after(shared)
        try:
            self._link.submit_report(member.report_on(round_id, shared, rows, metrics))
        except RoundError as error:
            # Of an epoch that is over: it is told again in the next one.
            self._journal.tell("stale", round_id, detail=error.message)
            return
        self._reported = round_id

    def _take(self, found: PublishedRound) -> None:
        try:
            aggregate, shared = self._checked(found)
        except PartialCell as error:
            self._context.refused("published_partial_cell", found.round, error)
            raise
        except (RefusedError, ProtocolError) as error:
            self._context.refused("published_round_refused", found.round, error)
            raise
        self._commit(found, shared, aggregate[METRICS_SLICE])

    def _commit(
        self, found: PublishedRound, shared: SharedState, metrics: NDArray[np.int64]
    ) -> None:
        """Move to a round that was checked, and settle it in the journal."""
        self._model.publish(found.round, shared, metrics=metrics, statement=found.statement)
        self._journal.settle(found.round, "not_counted")

    def _checked(self, found: PublishedRound) -> tuple[NDArray[np.int64], SharedState]:
        """Return a published round's aggregate and what follows from it, all of it verified."""
        member = self._membership
        if found.round <= self._model.version:
            raise ProtocolError(
                f"The coordinator sent round {found.round} as newer than {self._model.version}."
            )
        # Every round starts from the one published before it, which is the model's version here.
        terms = self._model.terms(found.round, found.kind)
        member.check_contributions(terms, found.contributions)
        manifest = manifest_digest(member.run, found.round, found.contributions)
        self._check_known(found, manifest)
        if member.revealer_id is not None:
            member.check_statement(found.round, found.statement, self._store.state.statement)
            member.check_paused(found.statement, found.contributions)
        elif found.statement is not None:
            raise RefusedError(
                f"Round {found.round} is said to have been opened by somebody, but the roster "
                "names no key authority that opens sums."
            )
        aggregate = self._read(found)
        self._model.check_sum(found.kind, aggregate, found.contributions)
        shared = self._model.applied(found.kind, aggregate)
        if found.statement is not None:
            self._compare(found, manifest, aggregate, shared)
        return aggregate, shared

    def _check_known(self, found: PublishedRound, manifest: bytes) -> None:
        """Refuse a round that contradicts what this party itself did in it.

        Args:
            manifest: digest of the round's contributions.
        """

    def _read(self, found: PublishedRound) -> NDArray[np.int64]:
        """Return the integers of a published sum."""
        member, vector = self._membership, self._model.vector(found.kind)
        if member.shares_key:
            with self._journal.timed(found.round, "seconds_revealing", "revealed"):
                return vector.member.reveal(found.blob, len(found.contributions))
        if found.statement is None:
            return vector.unpack(found.blob, len(found.contributions))
        return vector.unpack(member.seal_of(found.round).unseal_aggregate(found.blob), 1)

    def _compare(
        self,
        found: PublishedRound,
        manifest: bytes,
        aggregate: NDArray[np.int64],
        shared: SharedState,
    ) -> None:
        """Refuse a round of which anything is not what the key authority signed."""
        member, said = self._membership, found.statement
        rows = self._model.rows_after(shared)
        expected = {
            "manifest_digest": manifest,
            "state_tag": member.seal_of(found.round).state_tag(shared.canonical_bytes()),
            "published_digest": Blob.of(found.blob).digest,
            "metrics": aggregate[METRICS_SLICE].astype("<i8").tobytes(),
            "n_rows": rows.n_rows,
            "rows_digest": rows.digest,
        }
        wrong = [name for name, value in expected.items() if getattr(said, name) != value]
        if wrong:
            raise BadSignature(
                f"In round {found.round} these differ from what the key authority signed: "
                f"{', '.join(wrong)}.",
                remedy="Do not go on; tell the data owners that the coordinator published this.",
            )

    def _cross_epochs(self, found: PublishedRound) -> bool:
        """Skip rounds of an earlier epoch, whose secrets this client does not have.

        Returns:
            Whether there is a snapshot; where not, the coordinator asks others to send one.

        Raises:
            RefusedError: this client follows the rounds of its epoch, or refused so many snapshots
                that another would be no better.
        """
        if self._store.state.is_of_epoch:
            # A client that followed this epoch's rounds has no reason to leave them for a snapshot.
            error = RefusedError(
                f"The coordinator says that round {found.round} is of key epoch {found.epoch}; "
                f"this client follows epoch {self._membership.epoch}.",
                remedy="Do not go on; tell the data owners that the coordinator published this.",
            )
            self._context.refused("published_round_refused", found.round, error)
            raise error
        return self._pass_over(
            f"round {found.round} is of key epoch {found.epoch}, this client is in "
            f"{self._membership.epoch}"
        )

    def _pass_over(self, why: str) -> bool:
        """Take a copy of the model in place of rounds that this client cannot read.

        Args:
            why: it cannot, for people.

        Returns:
            Whether there was one.

        Raises:
            RefusedError: this client refused so many that another would be no better.
        """
        before = self._model.version
        self._take_snapshot()
        if self._model.version > before:
            return True
        if len(self._refused_snapshots) >= MAX_REFUSED:
            raise RefusedError(
                f"{MAX_REFUSED} snapshots could not be used, and {why}.",
                remedy="See audit.jsonl; tell the data owners that members or the coordinator send "
                "false copies of the model.",
            )
        if not self._waits:
            self._waits = True
            detail = f"{why}; others are asked for a copy of the model"
            self._journal.tell("waiting_for_snapshot", before, detail=detail)
        return False

    def _take_snapshot(self) -> None:
        """Take a copy of the model if there is one to believe; the others are refused for good."""
        member = self._membership
        while len(self._refused_snapshots) < MAX_REFUSED:
            snapshot = self._link.snapshot(
                member.client_id, member.run, self._model.version, self._refused_snapshots
            )
            if snapshot is None or snapshot.round <= self._model.version:
                return
            if snapshot.epoch > member.epoch:
                # As with rounds: enrolling in that epoch comes first.
                return
            digest = Blob.of(snapshot.blob).digest
            try:
                shared = self._checked_snapshot(snapshot)
            except (RefusedError, ProtocolError) as error:
                self._context.refused("snapshot_refused", snapshot.round, error)
                self._journal.tell("snapshot_refused", snapshot.round, detail=error.message)
                self._refused_snapshots += (digest,)
                continue
            self._model.adopt(snapshot.round, shared, statement=snapshot.statement)
            self._waits = False
            self._journal.tell("snapshot_taken", snapshot.round)
            return

    def _checked_snapshot(self, snapshot: Snapshot) -> SharedState:
        member = self._membership
        if snapshot.epoch != member.epoch:
            raise RefusedError(
                f"The snapshot of round {snapshot.round} is of epoch {snapshot.epoch}, expected "
                f"epoch {member.epoch}."
            )
        raw = snapshot.blob
        if member.is_encrypted:
            raw = member.seal_of(snapshot.round).unseal_snapshot(raw)
        try:
            shared = self._model.read(raw)
        except StorageError as error:
            raise ProtocolError(f"The snapshot cannot be read: {error.message}") from None
        problem = shape_problem(member.plan, len(member.catalogue), shared)
        if problem:
            raise ProtocolError(f"The snapshot {problem}.")
        if member.is_encrypted:
            self._check_vouched(snapshot, shared)
        return shared

    def _check_vouched(self, snapshot: Snapshot, shared: SharedState) -> None:
        """Check that others have this model, too: a snapshot's maker alone is not enough.

        The key authority says so in its word on the round. Where there is none under this epoch's
        key, two members do.
        """
        member, said = self._membership, snapshot.statement
        if said is not None:
            member.check_statement(snapshot.round, said, self._store.state.statement)
            found = said.state_tag, said.rows
        else:
            found = member.check_reports(snapshot.round, snapshot.reports).model
        tag = member.seal_of(snapshot.round).state_tag(shared.canonical_bytes())
        if not hmac.compare_digest(found[0], tag):
            raise BadSignature(
                f"The snapshot of round {snapshot.round} is not the model that others signed."
            )
        if found[1] != self._model.rows_after(shared):
            raise BadSignature(
                f"The snapshot of round {snapshot.round} leads to other item rows than the "
                f"{found[1].n_rows} that others signed."
            )
