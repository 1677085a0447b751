"""Catching up: every published round is checked, applied and committed before the next task.

A coordinator that publishes anything but what two members signed is refused: the client writes
it to the audit log and stops, its model as it was. A snapshot is made by one member, whom nobody
has to believe: a wrong one is written to the audit log, too, and passed over for another one, or
for the rounds.
"""

from __future__ import annotations

import hmac

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import BadSignature, FedrecError, ProtocolError, RefusedError, StorageError
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.training.layout import METRICS_SLICE
from fedrec.training.shapes import shape_problem
from fedrec.wire.chunks import Blob
from fedrec.wire.limits import MAX_REFUSED
from fedrec.wire.link import Link
from fedrec.wire.messages import PublishedRound, RevealStatement, Snapshot
from fedrec.wire.stated_rows import StatedRows
from fedrec_client.audit import AuditLog
from fedrec_client.local_model import SharedModel
from fedrec_client.membership import Membership
from fedrec_client.outbox import Outbox
from fedrec_client.private_store import PrivateStore
from fedrec_client.round_journal import RoundJournal
from fedrec_client.statements import is_enough
from fedrec_client.stored_state import RoundContent

__all__ = ["CatchingUp"]


class CatchingUp:
    """Brings the local model to the last published round."""

    def __init__(
        self,
        membership: Membership,
        link: Link,
        model: SharedModel,
        store: PrivateStore,
        outbox: Outbox,
        audit: AuditLog,
        journal: RoundJournal,
    ) -> None:
        self._membership = membership
        self._link = link
        self._model = model
        self._store = store
        self._outbox = outbox
        self._audit = audit
        self._journal = journal
        self._waits = False
        self._refused_snapshots: tuple[bytes, ...] = ()

    def catch_up(self, published: RoundId) -> None:
        """Take every round that was published since the model's version.

        Args:
            published: the last round that the coordinator says it published.

        Raises:
            RefusedError: a round that no two members vouch for, or that does not add up.
            ProtocolError: a round that cannot be read.
        """
        if self._model.version == 0 and published > 1:
            self._take_snapshot()
        while self._model.version < published:
            found = self._link.published(
                self._membership.client_id, self._membership.run, self._model.version
            )
            if found is None:
                return
            if found.epoch > self._membership.epoch:
                # Enrolling in that epoch comes first; the coordinator says that it began.
                return
            if found.epoch == self._membership.epoch:
                self._take(found)
            elif not self._cross_epochs(found):
                return

    def _take(self, found: PublishedRound) -> None:
        try:
            aggregate, shared, content = self._checked(found)
        except (RefusedError, ProtocolError) as error:
            self._refused("published_round_refused", found.round, error)
            raise
        staged = self._outbox.pending
        answered = staged is not None and staged.header.round == found.round
        counted = answered and staged is not None and staged.header in found.contributions
        before = self._store.in_progress
        self._model.publish(
            found.round,
            shared,
            content=content,
            metrics=aggregate[METRICS_SLICE],
            counted=counted,
        )
        if before is not None and before < found.round:
            self._journal.settle(before, "abandoned")
        self._journal.settle(found.round, "counted" if counted else "not_counted")

    def _checked(
        self, found: PublishedRound
    ) -> tuple[NDArray[np.int64], SharedState, RoundContent]:
        """Return a published round's aggregate and what follows from it, all of it verified."""
        member = self._membership
        if found.round <= self._model.version:
            raise ProtocolError(
                f"The coordinator sent round {found.round} as newer than {self._model.version}."
            )
        if found.sealed != member.is_encrypted:
            raise RefusedError(
                f"Round {found.round} is {'sealed' if found.sealed else 'not sealed'}, which "
                f"protection {member.protection.name} does not allow."
            )
        # Every round starts from the one published before it, which is the model's version here.
        terms = self._model.terms(member, found.round, found.kind, found.committee)
        member.check_contributions(terms, found.contributions)
        manifest = member.manifest_digest(found.round, found.contributions)
        opened = self._store.revealed(found.round)
        if opened is not None and opened.manifest_digest != manifest:
            raise RefusedError(
                f"Round {found.round} was published with other contributions than those that "
                "this client opened."
            )
        signed = None
        if member.is_encrypted:
            signed = member.check_statements(
                found.round, found.statements, committee=found.committee
            )
        seal = member.seal_of(found.round, found.kind)
        packed = seal.unseal_aggregate(found.blob) if found.sealed else found.blob
        n_summands = 1 if found.sealed else len(found.contributions)
        aggregate = self._model.vector(member, found.kind).unpack(packed, n_summands)
        shared = self._model.after(member, found.kind, aggregate, found.contributions)
        metrics = aggregate[METRICS_SLICE].astype("<i8").tobytes()
        rows = self._model.rows_after(member, shared)
        content = seal.content(
            manifest, aggregate, found.blob, metrics, shared.canonical_bytes(), rows
        )
        if signed is not None:
            _same(signed, content)
        return aggregate, shared, content

    def _cross_epochs(self, found: PublishedRound) -> bool:
        """Skip rounds of an earlier epoch, whose secrets this client does not have.

        Returns:
            Whether there is a snapshot; where not, the coordinator asks others to send one.

        Raises:
            RefusedError: this client follows the rounds of its epoch, or refused so many snapshots
                that another would be no better.
        """
        if self._store.state.content is not None:
            # Whoever followed this epoch's rounds has no reason to leave them for a snapshot.
            error = RefusedError(
                f"The coordinator says that round {found.round} is of key epoch {found.epoch}; "
                f"this client follows epoch {self._membership.epoch}.",
                remedy="Do not go on; tell the data owners that the coordinator published this.",
            )
            self._refused("published_round_refused", found.round, error)
            raise error
        before = self._model.version
        self._take_snapshot()
        if self._model.version > before:
            return True
        if len(self._refused_snapshots) >= MAX_REFUSED:
            raise RefusedError(
                f"{MAX_REFUSED} snapshots could not be used, and round {found.round} is of key "
                f"epoch {found.epoch}, which is closed to this client.",
                remedy="See audit.jsonl; tell the data owners that members or the coordinator send "
                "false copies of the model.",
            )
        if not self._waits:
            self._waits = True
            self._journal.tell(
                "waiting_for_snapshot",
                found.round,
                detail=f"it is of key epoch {found.epoch}, this client is in "
                f"{self._membership.epoch}; others are asked for a copy of the model",
            )
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
                shared, content = self._checked_snapshot(snapshot)
            except (RefusedError, ProtocolError) as error:
                self._refused("snapshot_refused", snapshot.round, error)
                self._journal.tell("snapshot_refused", snapshot.round, detail=error.message)
                self._refused_snapshots += (digest,)
                continue
            self._model.adopt(snapshot.round, shared, content)
            self._journal.tell("snapshot_taken", snapshot.round)
            return

    def _checked_snapshot(self, snapshot: Snapshot) -> tuple[SharedState, RoundContent | None]:
        member = self._membership
        if snapshot.sealed != member.is_encrypted or snapshot.epoch != member.epoch:
            raise RefusedError(
                f"The snapshot of round {snapshot.round} is "
                f"{'sealed' if snapshot.sealed else 'not sealed'} in epoch {snapshot.epoch}, "
                f"expected epoch {member.epoch} under protection {member.protection.name}."
            )
        seal = member.seal_of(snapshot.round, "train")
        raw = seal.unseal_snapshot(snapshot.blob) if snapshot.sealed else snapshot.blob
        try:
            shared = self._model.read(raw)
        except StorageError as error:
            raise ProtocolError(f"The snapshot cannot be read: {error.message}") from None
        problem = shape_problem(member.plan, len(member.catalogue), shared)
        if problem:
            raise ProtocolError(f"The snapshot {problem}.")
        if not member.is_encrypted:
            return shared, None
        rows = self._model.rows_after(member, shared)
        return shared, self._vouched(snapshot, seal.state_tag(shared.canonical_bytes()), rows)

    def _vouched(
        self, snapshot: Snapshot, state_tag: bytes, rows: StatedRows
    ) -> RoundContent | None:
        """Return what two members signed of this state: a snapshot's maker alone is not enough.

        None where they said under this epoch's key what an earlier epoch's round led to: the
        round itself is closed to this client, and committees are drawn as in a new epoch.
        """
        member = self._membership
        statements = snapshot.statements
        if not is_enough(member.roster, statements):
            found = self._link.published(member.client_id, member.run, RoundId(snapshot.round - 1))
            if found is not None and found.round == snapshot.round:
                statements += found.statements
        statement = member.check_statements(snapshot.round, statements)
        if not hmac.compare_digest(statement.state_tag, state_tag):
            raise BadSignature(
                f"The snapshot of round {snapshot.round} is not the model that members signed."
            )
        if statement.rows != rows:
            raise BadSignature(
                f"The snapshot of round {snapshot.round} leads to other item rows than the "
                f"{statement.n_rows} that members signed."
            )
        if statement.is_attestation:
            return None
        return RoundContent(
            manifest_digest=statement.manifest_digest,
            aggregate_tag=statement.aggregate_tag,
            state_tag=statement.state_tag,
            published_digest=statement.published_digest,
            locked_metrics=statement.locked_metrics,
            n_rows=statement.n_rows,
            rows_digest=statement.rows_digest,
        )

    def _refused(self, event: str, round_id: RoundId, error: FedrecError) -> None:
        self._audit.refused(event, run=self._membership.run, round_id=round_id, error=error)


def _same(signed: RevealStatement, found: RoundContent) -> None:
    """Refuse a round of which anything is not what its key holders signed."""
    wrong = [
        name for name in RoundContent.model_fields if getattr(signed, name) != getattr(found, name)
    ]
    if wrong:
        raise BadSignature(
            f"In round {signed.round} these differ from what its key holders signed: "
            f"{', '.join(wrong)}.",
            remedy="Do not go on; tell the data owners that the coordinator published this.",
        )
