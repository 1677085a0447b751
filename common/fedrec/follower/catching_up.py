"""Catch up: check, apply and commit every published round before the next task.

If the coordinator publishes anything but what the key authority signed, the client records it in
the audit log and stops with its model unchanged. In the papers' protocol, the client decrypts the
sum itself, rejects a sum that honest clients can't produce, and reports its metrics. A snapshot
comes from a single member and isn't trusted by itself. A wrong one is recorded in the audit log,
and the client tries another snapshot or waits for rounds.
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
        """Apply every round published since the model's version.

        Args:
            published: the last published round, according to the coordinator.

        Raises:
            RefusedError: a round isn't signed as required, or its sum isn't valid.
            ProtocolError: a round can't be decoded.
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
                # The client must enrol in that epoch first. The coordinator's next task announces
                # it.
                return
            if found.epoch == self._membership.epoch:
                self._take(found)
            elif not self._cross_epochs(found):
                return

    def report(self, published: RoundId) -> None:
        """Report the metrics of the last round, once a session, if reporting is the clients' duty.

        Args:
            published: the last known published round.
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
            # The epoch has ended. The report is repeated in the next one.
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
        """Move to a checked round, and record its outcome in the journal."""
        self._model.publish(found.round, shared, metrics=metrics, statement=found.statement)
        self._journal.settle(found.round, "not_counted")

    def _checked(self, found: PublishedRound) -> tuple[NDArray[np.int64], SharedState]:
        """Verify a published round. Return its aggregate and the shared model that follows."""
        member = self._membership
        if found.round <= self._model.version:
            raise ProtocolError(
                f"The coordinator sent round {found.round} after version {self._model.version}."
            )
        # Every round starts from the round published before it, which is this model's version.
        terms = self._model.terms(found.round, found.kind)
        member.check_contributions(terms, found.contributions)
        manifest = manifest_digest(member.run, found.round, found.contributions)
        self._check_known(found, manifest)
        if member.revealer_id is not None:
            member.check_statement(found.round, found.statement, self._store.state.statement)
            member.check_paused(found.statement, found.contributions)
        elif found.statement is not None:
            raise RefusedError(
                f"Round {found.round} was opened by a revealer, but the roster names no key "
                "authority that opens sums."
            )
        found, computed = self._model.parts_of(found)
        aggregate = self._read(found)
        self._model.check_sum(found.kind, aggregate, found.contributions)
        shared = self._model.applied(found.kind, aggregate, computed)
        if found.statement is not None:
            self._compare(found, manifest, aggregate, shared)
        return aggregate, shared

    def _check_known(self, found: PublishedRound, manifest: bytes) -> None:
        """Refuse a round that contradicts this party's own part in it.

        Args:
            manifest: the digest of the round's contributions.
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
        """Refuse a round that differs from the key authority's statement."""
        member, statement = self._membership, found.statement
        rows = self._model.rows_after(shared)
        expected = {
            "manifest_digest": manifest,
            "state_tag": member.seal_of(found.round).state_tag(shared.canonical_bytes()),
            "published_digest": Blob.of(found.blob).digest,
            "metrics": aggregate[METRICS_SLICE].astype("<i8").tobytes(),
            "n_rows": rows.n_rows,
            "rows_digest": rows.digest,
        }
        wrong = [name for name, value in expected.items() if getattr(statement, name) != value]
        if wrong:
            raise BadSignature(
                f"Round {found.round} differs from what the key authority signed: "
                f"{', '.join(wrong)}.",
                remedy="Stop here, and tell the data owners that the coordinator published this.",
            )

    def _cross_epochs(self, found: PublishedRound) -> bool:
        """Skip rounds of an earlier epoch, whose secrets this client doesn't have.

        Returns:
            True if a snapshot was used. Otherwise, the coordinator asks other clients for one.

        Raises:
            RefusedError: this client already follows the rounds of its epoch, or it refused too
                many snapshots to try another.
        """
        if self._store.state.is_of_epoch:
            # A client that has followed this epoch's rounds has no reason to use a snapshot.
            error = RefusedError(
                f"The coordinator published round {found.round} in key epoch {found.epoch}, but "
                f"this client follows epoch {self._membership.epoch}.",
                remedy="Stop here, and tell the data owners that the coordinator published this.",
            )
            self._context.refused("published_round_refused", found.round, error)
            raise error
        return self._pass_over(
            f"round {found.round} belongs to key epoch {found.epoch}, and this client is in epoch "
            f"{self._membership.epoch}"
        )

    def _pass_over(self, why: str) -> bool:
        """Use a snapshot in place of rounds that this client can't read.

        Args:
            why: the reason, for messages.

        Returns:
            True if a snapshot was used.

        Raises:
            RefusedError: this client refused too many snapshots to try another.
        """
        before = self._model.version
        self._take_snapshot()
        if self._model.version > before:
            return True
        if len(self._refused_snapshots) >= MAX_REFUSED:
            raise RefusedError(
                f"{MAX_REFUSED} snapshots were refused, and {why}.",
                remedy="See audit.jsonl. Tell the data owners that members or the coordinator "
                "send false snapshots.",
            )
        if not self._waits:
            self._waits = True
            detail = f"{why}. Asking other clients for a snapshot"
            self._journal.tell("waiting_for_snapshot", before, detail=detail)
        return False

    def _take_snapshot(self) -> None:
        """Adopt a snapshot if a valid one exists. Invalid ones are refused permanently."""
        member = self._membership
        while len(self._refused_snapshots) < MAX_REFUSED:
            snapshot = self._link.snapshot(
                member.client_id, member.run, self._model.version, self._refused_snapshots
            )
            if snapshot is None or snapshot.round <= self._model.version:
                return
            if snapshot.epoch > member.epoch:
                # As with rounds, the client must enrol in that epoch first.
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
                f"The snapshot of round {snapshot.round} is of epoch {snapshot.epoch}, but epoch "
                f"{member.epoch} was expected."
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
        """Check that other parties have this model too. Its maker's word alone isn't enough.

        The key authority's statement on the round confirms it. Without one under this epoch's key,
        the reports of two members do.
        """
        member, statement = self._membership, snapshot.statement
        if statement is not None:
            member.check_statement(snapshot.round, statement, self._store.state.statement)
            found = statement.state_tag, statement.rows
        else:
            found = member.check_reports(snapshot.round, snapshot.reports).model
        tag = member.seal_of(snapshot.round).state_tag(shared.canonical_bytes())
        if not hmac.compare_digest(found[0], tag):
            raise BadSignature(
                f"The snapshot of round {snapshot.round} isn't the model that other parties signed."
            )
        if found[1] != self._model.rows_after(shared):
            raise BadSignature(
                f"The snapshot of round {snapshot.round} leads to {found[1].n_rows} item rows "
                "other than those that other parties signed."
            )
