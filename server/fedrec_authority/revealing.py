"""Revealing a round's sum: the one place where the key authority's decryption key is used.

It must never be made to open anything but the sum of enough members' signed updates of one round,
and only once per round. So the sum that is opened here is one that the revealer added up itself,
from contributions whose signatures it checked; above `rounds.recompute_limit` contributions it is
the coordinator's, whose tags must be those of exactly these contributions.

A closed round waits for its word. So what it refuses it says, too: the coordinator gives the round
up then. What it says of a sum that it opened is one sentence, whatever was wrong.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fedrec.errors import (
    FedrecError,
    PartialCell,
    ProtocolError,
    RefusedError,
    RevealRefused,
    RoundError,
    SumOutOfBounds,
    WrongTags,
)
from fedrec.training.layout import METRICS_SLICE
from fedrec.wire.chunks import Blob
from fedrec.wire.limits import MAX_REASON_CHARS
from fedrec.wire.link import Link
from fedrec.wire.messages import Reveal, RevealStatement
from fedrec_client.audit import AuditLog
from fedrec_client.local_model import SharedModel
from fedrec_client.membership import Membership
from fedrec_client.private_store import PrivateStore
from fedrec_client.round_journal import RoundJournal

__all__ = ["Revealing"]

MOST_REFUSED = 3
"""On so many sums the key may be used in vain in an epoch: each answer tells about it."""
_UNFIT = "it is not a sum that honest clients add up to"
_REMEDY = "Nothing was revealed; see audit.jsonl, and tell the data owners if it happens again."


class Revealing:
    """Opens the sums that may be opened, and refuses everything else."""

    def __init__(
        self,
        membership: Membership,
        link: Link,
        model: SharedModel,
        store: PrivateStore,
        audit: AuditLog,
        journal: RoundJournal,
    ) -> None:
        self._membership = membership
        self._link = link
        self._model = model
        self._store = store
        self._audit = audit
        self._journal = journal

    def reveal(self, task: Reveal) -> None:
        """Open a round's sum and send the signed result, or say that it is refused.

        Raises:
            RevealRefused: the task is not one that may be done; the coordinator was told.
            RoundError: the round is over, or starts from another version than the model's.
        """
        if task.round <= self._model.version:
            raise RoundError(f"Round {task.round} is published already.")
        self._journal.tell("revealing", task.round)
        with self._journal.timed(task.round, "seconds_revealing", "revealed"):
            try:
                self._check(task)
                total = self._fetch_sum(task) if self._is_fetched(task) else self._recompute(task)
            except (ProtocolError, RefusedError) as error:
                raise self._refusal(task, error, error.message) from error
            self._open(task, total)

    def _check(self, task: Reveal) -> None:
        """Refuse whatever can be refused before anything is fetched."""
        member = self._membership
        if task.epoch != member.epoch:
            raise RefusedError(
                f"Round {task.round} is of epoch {task.epoch}, this client's is {member.epoch}."
            )
        if task.base_round != self._model.version:
            raise RefusedError(
                f"Round {task.round} starts from version {task.base_round}, this client has "
                f"version {self._model.version}."
            )
        terms = self._model.terms(member, task.round, task.kind)
        member.check_contributions(terms, task.contributions)
        opened = self._store.revealed(task.round)
        if opened is not None:
            manifest = member.manifest_digest(task.round, task.contributions)
            if opened.manifest_digest != manifest:
                raise RefusedError(
                    f"Round {task.round} was opened with other contributions before."
                )
            if opened.refused:
                raise RefusedError(f"The sum of round {task.round} was refused before.")
        self._check_refusals()

    def _check_refusals(self) -> None:
        """Refuse to use a key that was used in vain as often as may be."""
        if self._store.state.refused_sums >= MOST_REFUSED:
            raise RefusedError(
                f"{MOST_REFUSED} sums that had to be refused, such as ones with wrong tags, were "
                f"presented in epoch {self._membership.epoch}; every further answer would tell "
                "about the key.",
                remedy="Tell the data owners: a new key epoch is needed, and perhaps another "
                "coordinator, or a roster without a member whose software was changed.",
            )

    def _is_fetched(self, task: Reveal) -> bool:
        """Tell whether a sum is opened by its tags, without adding its contributions up."""
        member = self._membership
        limit = member.plan.rounds.recompute_limit
        return member.is_tagged and len(task.contributions) > limit

    def _fetch_sum(self, task: Reveal) -> bytes:
        """Return the coordinator's sum."""
        member = self._membership
        # Under paillier it hands out a refreshed sum, which has another digest than the announced.
        return self._link.round_sum(member.client_id, member.run, task.round)

    def _recompute(self, task: Reveal) -> bytes:
        """Return the sum of the contributions, added up here."""
        member = self._membership
        total = self._model.vector(member, task.kind).accumulator()
        for header in task.contributions:
            payload = self._link.contribution(
                member.client_id, member.run, task.round, header.client_id
            )
            if not header.blob.describes(payload):
                raise RefusedError(
                    f"The contribution of {header.client_id[:16]} has {len(payload)} bytes that "
                    "are not the signed ones."
                )
            total.add(payload)
        own = total.finish()
        if not Blob(length=task.sum_length, digest=task.sum_digest).describes(own):
            raise RefusedError(
                f"The coordinator's sum of round {task.round} is not the sum of its "
                f"{len(task.contributions)} contributions."
            )
        return own

    def _open(self, task: Reveal, total: bytes) -> None:
        """Use the key on a sum that was computed here, and send the signed result."""
        member = self._membership
        manifest = member.manifest_digest(task.round, task.contributions)
        opened, sum_digest = self._store.revealed(task.round), Blob.of(total).digest
        if opened is not None and opened.sum_digest != sum_digest:
            # Answers about many sums of its choice would give the key to a coordinator.
            error: FedrecError = RefusedError(
                f"Another sum of round {task.round} was presented before."
            )
            raise self._refusal(task, error, error.message)
        fetched = self._is_fetched(task)
        names = member.tag_names(task.round, task.contributions) if member.is_tagged else None
        # On disk before the key is used: after a crash, too, a round has one sum only.
        self._store.record_reveal(task.round, manifest, sum_digest, tagged=fetched)
        vector = self._model.vector(member, task.kind)
        try:
            aggregate = vector.member.reveal(total, len(task.contributions), names)
            shared = self._model.after(member, task.kind, aggregate, task.contributions)
        except (ProtocolError, RefusedError) as error:
            self._note_refusal(task, error)
            raise self._refusal(task, error, _UNFIT) from error
        if fetched:
            self._store.forgive_sum()
        seal = member.seal_of(task.round)
        sealed = seal.seal_aggregate(vector.pack(aggregate))
        rows = self._model.rows_after(member, shared)
        statement = self._statement(
            task,
            state_tag=seal.state_tag(shared.canonical_bytes()),
            published_digest=Blob.of(sealed).digest,
            metrics=aggregate[METRICS_SLICE].astype("<i8").tobytes(),
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
        )
        self._link.submit_reveal(statement, sealed)

    def _statement(self, task: Reveal, **said: Any) -> RevealStatement:
        """Return this revealer's signed word on a round."""
        member = self._membership
        statement = RevealStatement(
            federation=member.federation,
            run=member.run,
            round=task.round,
            epoch=member.epoch,
            client_id=member.client_id,
            manifest_digest=member.manifest_digest(task.round, task.contributions),
            **said,
        )
        return member.sign_statement(statement)

    def _note_refusal(self, task: Reveal, error: FedrecError) -> None:
        """Keep for good that the answer is a refusal; count it where it tells about the key."""
        member = self._membership
        counted = self._is_fetched(task)
        if counted and not isinstance(error, WrongTags):
            self._store.forgive_sum()
            counted = False
        # What has the right tags was decrypted to what members encrypted, whatever the key.
        tells = not (isinstance(error, SumOutOfBounds) and member.is_tagged)
        self._store.record_refused(task.round, counted=tells and not counted)

    def _refusal(self, task: Reveal, error: FedrecError, told: str) -> RevealRefused:
        """Write down and tell the coordinator that a sum is refused, and return the error.

        Args:
            told: why, for the coordinator and its operators.
        """
        refused = RevealRefused(error.message, remedy=error.remedy or _REMEDY)
        self._audit.refused(
            "reveal_refused",
            run=self._membership.run,
            round_id=task.round,
            error=error if isinstance(error, PartialCell | SumOutOfBounds) else refused,
        )
        reason = " ".join(told.split())[:MAX_REASON_CHARS]
        with suppress(FedrecError):
            # A coordinator that does not take it gave the round up before, or lies.
            self._link.submit_reveal(self._statement(task, refused=reason), b"")
        return refused
