"""Revealing a round's sum, or verifying it: the one place where a decryption key is used.

Members do it for each other; where the roster names a revealer, the key authority does it alone.

Whoever reveals must never be made to open anything but the sum of enough members' signed
updates of one round, and only once per round. So the sum that is opened here is one that this
client added up itself, from contributions whose signatures it checked; above
`rounds.recompute_limit` contributions it is the coordinator's, whose tags must be those of exactly
these contributions.
"""

from __future__ import annotations

from fedrec.errors import (
    FedrecError,
    ProtocolError,
    RefusedError,
    RevealRefused,
    RoundError,
    SumOutOfBounds,
    WrongTags,
)
from fedrec.training.layout import METRICS_SLICE
from fedrec.wire.chunks import Blob
from fedrec.wire.link import Link
from fedrec.wire.messages import Reveal, RevealStatement, UploadHeader
from fedrec_client.audit import AuditLog
from fedrec_client.local_model import SharedModel
from fedrec_client.membership import Membership
from fedrec_client.opened_sets import OpenedSets, model_digest
from fedrec_client.private_store import PrivateStore
from fedrec_client.round_journal import RoundJournal

__all__ = ["Revealing"]

MOST_REFUSED = 3
"""So many sums with wrong tags may be presented in an epoch: each answer tells about its key. A
revealer counts every sum on which it used the key in vain."""
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
        """Open or verify a round's sum and send the signed result.

        Raises:
            RevealRefused: the task is not one that a key holder may do; the key was not used.
            RoundError: the round is over, or starts from another version than the model's.
        """
        if task.round <= self._model.version:
            raise RoundError(f"Round {task.round} is published already.")
        self._journal.tell("revealing", task.round, detail=task.role)
        with self._journal.timed(task.round, "seconds_revealing", "revealed"):
            try:
                self._check(task)
                total = self._fetch_sum(task) if self._is_fetched(task) else self._recompute(task)
            except (ProtocolError, RefusedError) as error:
                raise self._refusal(task, error) from error
            self._open(task, total)
        self._journal.mark_revealed(task.round)

    def _check(self, task: Reveal) -> None:
        """Refuse whatever can be refused before anything is fetched."""
        member = self._membership
        if not member.is_encrypted:
            raise RefusedError(f"Protection {member.protection.name} has nothing to reveal.")
        if task.epoch != member.epoch:
            raise RefusedError(
                f"Round {task.round} is of epoch {task.epoch}, this client's is {member.epoch}."
            )
        if task.base_round != self._model.version:
            raise RefusedError(
                f"Round {task.round} starts from version {task.base_round}, this client has "
                f"version {self._model.version}."
            )
        if member.client_id not in task.committee:
            raise RefusedError(f"This client is not in the committee of round {task.round}.")
        terms = self._model.terms(member, task.round, task.kind, task.committee)
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
        self._check_own(task)
        self._check_refusals(task)
        self._opened(task)

    def _opened(self, task: Reveal) -> OpenedSets | None:
        """Return the sets of opened sums with this round's, which one who opens alone notes.

        Two of a committee could not keep count: the next round has another committee.

        Raises:
            RevealRefused: an earlier sum and this one would give too few clients away.
        """
        member = self._membership
        if not member.is_revealer:
            return None
        model = model_digest(self._model.shared.canonical_bytes())
        found = frozenset(header.client_id for header in task.contributions)
        return self._store.opened.with_one(model, task.kind, found, member.minimum_summands)

    def _check_refusals(self, task: Reveal) -> None:
        """Refuse to use a key that was used in vain as often as may be."""
        member = self._membership
        watched = member.is_revealer or self._is_fetched(task)
        if watched and self._store.state.refused_sums >= MOST_REFUSED:
            raise RefusedError(
                f"{MOST_REFUSED} sums that had to be refused, such as ones with wrong tags, were "
                f"presented to this client in epoch {member.epoch}; every further answer would "
                "tell about the key.",
                remedy="Tell the data owners: a new key epoch is needed, and perhaps another "
                "coordinator, or a roster without a member whose software was changed.",
            )

    def _check_own(self, task: Reveal) -> None:
        """Refuse a list from which our update is missing, or in which another one is ours."""
        listed = [h for h in task.contributions if h.client_id == self._membership.client_id]
        staged = self._store.state.staged
        own = staged if staged is not None and staged.header.round == task.round else None
        if own is not None and own.acknowledged and not listed:
            raise RefusedError(
                f"The coordinator acknowledged this client's update of round {task.round} and "
                "left it out."
            )
        if listed and (own is None or listed != [own.header]):
            raise RefusedError(
                f"Round {task.round} lists an update of this client that is not in its outbox."
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
            payload = self._payload(task, header)
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

    def _payload(self, task: Reveal, header: UploadHeader) -> bytes:
        """Return a contribution; this client's own is in its outbox, as was checked."""
        member, staged = self._membership, self._store.state.staged
        if header.client_id == member.client_id and staged is not None:
            return self._store.read(staged.update)
        return self._link.contribution(member.client_id, member.run, task.round, header.client_id)

    def _open(self, task: Reveal, total: bytes) -> None:
        """Use the key on a sum that was computed here, and send the signed result."""
        member = self._membership
        manifest = member.manifest_digest(task.round, task.contributions)
        opened, sum_digest = self._store.revealed(task.round), Blob.of(total).digest
        if opened is not None and opened.sum_digest != sum_digest:
            # Answers about many sums of its choice would give the key to a coordinator.
            raise self._refusal(
                task, RefusedError(f"Another sum of round {task.round} was presented before.")
            )
        names, fetched = None, self._is_fetched(task)
        if fetched or (member.is_revealer and member.is_tagged):
            names = member.tag_names(task.round, task.contributions)
        # On disk before the key is used: after a crash, too, a round has one sum only.
        self._store.record_reveal(
            task.round, manifest, sum_digest, tagged=fetched, opened=self._opened(task)
        )
        vector = self._model.vector(member, task.kind)
        try:
            aggregate = vector.member.reveal(total, len(task.contributions), names)
            shared = self._model.after(member, task.kind, aggregate, task.contributions)
        except (ProtocolError, RefusedError) as error:
            self._note_refusal(task, error)
            raise self._refusal(task, error) from error
        if fetched:
            self._store.forgive_sum()
        seal = member.seal_of(task.round, task.kind)
        metrics = aggregate[METRICS_SLICE].astype("<i8").tobytes()
        sealed = seal.seal_aggregate(vector.pack(aggregate))
        rows = self._model.rows_after(member, shared)
        content = seal.content(manifest, aggregate, sealed, metrics, shared.canonical_bytes(), rows)
        statement = RevealStatement(
            federation=member.federation,
            run=member.run,
            round=task.round,
            epoch=member.epoch,
            client_id=member.client_id,
            **content.model_dump(),
            share=seal.share(content, task.committee.index(member.client_id) + 1),
        )
        blob = sealed if task.role == "reveal" else b""
        self._link.submit_reveal(member.sign_statement(statement), blob)

    def _note_refusal(self, task: Reveal, error: FedrecError) -> None:
        """Keep for good that the answer is a refusal; count it where it tells about the key."""
        member = self._membership
        counted = self._is_fetched(task)
        if counted and not isinstance(error, WrongTags):
            self._store.forgive_sum()
            counted = False
        # What has the right tags was decrypted to what members encrypted, whatever the key.
        tells = not (isinstance(error, SumOutOfBounds) and member.is_tagged)
        counts = member.is_revealer and tells and not counted
        self._store.record_refused(task.round, counted=counts)

    def _refusal(self, task: Reveal, error: FedrecError) -> RevealRefused:
        refused = RevealRefused(error.message, remedy=error.remedy or _REMEDY)
        self._audit.refused(
            "reveal_refused",
            run=self._membership.run,
            round_id=task.round,
            error=error if isinstance(error, SumOutOfBounds) else refused,
        )
        return refused
