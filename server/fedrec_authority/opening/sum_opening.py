"""Open a round's sum. Only this module uses the key authority's decryption key.

The key must open nothing but a sum of enough members' signed updates of one round, once per round.
So the revealer opens a sum that it added up itself, from contributions whose signatures it checked.
Above `rounds.recompute_limit` contributions it opens the coordinator's sum, whose tags must match
exactly these contributions.

A closed round waits for its answer. So a refusal is an answer, too, with which the coordinator
abandons the round. About a sum that was opened, the refusal is always the same sentence.

An unfit sum is examined by cells (`attribution`). The sum of the good ones is published, and the
others are named and paused.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
from fedrec.plan.algorithm import divides_by_count
from fedrec.plan.layout import METRICS_SLICE
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import MAX_REASON_CHARS
from fedrec.wire.messages import UNSAID, Reveal, RevealStatement, manifest_digest
from fedrec.wire.recovery import pack_headers
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import changing
from fedrec_authority.opening.attribution import Attribution, CellFindings
from fedrec_authority.opening.cell_counts import CellCounts, Contributions, OpeningContext, fetch

MOST_REFUSED = 16
"""The number of unfit sums in an epoch for which the key may be used.

Each answer reveals something about it.
"""
_UNFIT = "the sum is out of bounds, and one of these clients caused it"
_COUNTED_AGAIN = "the sum is out of bounds, and the clients of the other cells are counted again"
_NOT_THEIRS = "the coordinator's sum does not match its contributions, although each cell is valid"
_REMEDY = "Nothing was opened. See audit.jsonl, and tell the data owners if it happens again."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publishable:
    """A sum that may be published, with its contributions."""

    contributions: Contributions
    aggregate: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why no sum of a round is published.

    Attributes:
        error: the problem, for the audit log.
        public_reason: the sentence for the coordinator and its operators.
        is_final: whether the key was used, so that the round's sum stays refused.
        counts_against_key: whether the refusal uses up one of `MOST_REFUSED`.
    """

    error: FedrecError
    public_reason: str
    is_final: bool = False
    counts_against_key: bool = False


class SumOpening:
    """Open the sums that may be opened, and refuse all others."""

    def __init__(self, context: OpeningContext, folder: AuthorityFolder) -> None:
        self._context = context
        self._folder = folder
        self._membership = context.membership
        self._link = context.link
        self._model = context.model
        self._store = context.store
        self._journal = context.journal
        self._counts = CellCounts(context)
        self._attribution = Attribution(context, self._counts)

    def reveal(self, task: Reveal) -> None:
        """Open a round's sum and send the signed result, or send a refusal.

        Raises:
            RevealRefused: the task must not be done. The coordinator was told.
            RoundError: the round is over, or it starts from a different version than the model.
        """
        if task.round <= self._model.version:
            raise RoundError(f"Round {task.round} was already published.")
        if self._sent_again(task):
            return
        self._journal.tell("revealing", task.round)
        with self._journal.timed(task.round, "seconds_revealing", "revealed"):
            answer = self._answer(task)
            if isinstance(answer, _Refusal):
                raise self._refuse(task, answer) from answer.error
            self._send(task, answer)

    def _sent_again(self, task: Reveal) -> bool:
        """Send the earlier result for this sum, and tell whether there was one."""
        member, opened = self._membership, self._store.state.opened
        if opened is None:
            return False
        signed = opened.statement
        if (signed.run, signed.round, signed.epoch) != (member.run, task.round, task.epoch):
            return False
        digest, revealed = (
            manifest_digest(member.run, task.round, task.contributions),
            self._store.state.revealed_as(task.round),
        )
        # If a cell was paused, the earlier answer covers only the others.
        asked = revealed is not None and revealed.manifest_digest == digest
        kept = revealed.kept if revealed is not None and asked else digest
        if signed.manifest_digest not in (digest, kept):
            return False
        self._link.submit_reveal(signed, self._store.read(opened.sealed))
        return True

    def _answer(self, task: Reveal) -> _Publishable | _Refusal:
        """Open a round's sum, or decide why it is refused."""
        try:
            self._check(task)
            total, problem = self._total(task)
            self._check_same_sum(task, total)
        except (ProtocolError, RefusedError) as error:
            return _Refusal(error=error, public_reason=error.message)
        # On disk before the key is used, so that a round has only one sum, even after a crash.
        self._store.record_reveal(
            task.round,
            manifest_digest(self._membership.run, task.round, task.contributions),
            Blob.of(total).digest,
        )
        try:
            if problem is not None:
                raise problem
            found: _Publishable | _Refusal = self._opened(task, total)
        except (ProtocolError, RefusedError) as error:
            found = self._without_unfit(task, error)
        if isinstance(found, _Refusal):
            return found
        try:
            aggregate = self._counts.left_in(task.kind, found.aggregate, found.contributions)
        except RefusedError as error:
            return _Refusal(error=error, public_reason=error.message, is_final=True)
        self._store.settle(task.round)
        return replace(found, aggregate=aggregate)

    def _check(self, task: Reveal) -> None:
        """Refuse as much as possible before fetching anything."""
        member = self._membership
        if task.epoch != member.epoch:
            raise RefusedError(
                f"Round {task.round} is in key epoch {task.epoch}, but the key authority is in "
                f"epoch {member.epoch}."
            )
        if task.base_round != self._model.version:
            raise RefusedError(
                f"Round {task.round} starts from version {task.base_round}, but the key authority "
                f"has version {self._model.version}."
            )
        terms = self._model.terms(task.round, task.kind)
        member.check_contributions(terms, task.contributions)
        paused = self._attribution.listed(task)
        if paused:
            raise RefusedError(
                f"Round {task.round} has contributions from paused cells: {_listed(paused)}."
            )
        opened = self._store.state.revealed_as(task.round)
        if opened is not None:
            manifest = manifest_digest(member.run, task.round, task.contributions)
            if opened.manifest_digest != manifest:
                raise RefusedError(
                    f"Round {task.round} was already opened with other contributions."
                )
            if opened.refused:
                raise RefusedError(f"The sum of round {task.round} was already refused.")
        self._check_refusals()

    def _check_refusals(self) -> None:
        """Refuse to use a key after the largest allowed number of refused sums."""
        if self._store.state.refused_sums >= MOST_REFUSED:
            raise RefusedError(
                f"In epoch {self._membership.epoch}, the coordinator sent {MOST_REFUSED} sums that "
                "had to be refused, such as sums with wrong tags. Every further answer would "
                "reveal something about the key.",
                remedy="Tell the data owners: they need a new key epoch, and perhaps another "
                "coordinator, or a roster without a member whose software was changed.",
            )

    def _is_fetched(self, task: Reveal) -> bool:
        """Return whether a sum is checked by its tags, without adding up its contributions."""
        member = self._membership
        limit = member.plan.rounds.recompute_limit
        return member.is_tagged and len(task.contributions) > limit

    def _total(self, task: Reveal) -> tuple[bytes, FedrecError | None]:
        """Return the sum to open, or why the contributions have none."""
        member = self._membership
        if self._is_fetched(task):
            # Under paillier the coordinator sends a refreshed sum, whose digest differs from the
            # announced one.
            return self._link.round_sum(member.client_id, member.run, task.round), None
        total = self._model.vector(task.kind).accumulator()
        for header in task.contributions:
            payload = fetch(self._link, member, task, header)
            try:
                total.add(payload)
            except ProtocolError as error:
                return b"", error
        own = total.finish()
        if not task.sum.describes(own):
            raise RefusedError(
                f"The coordinator's sum of round {task.round} does not match the sum of its "
                f"{len(task.contributions)} contributions."
            )
        return own, None

    def _check_same_sum(self, task: Reveal, total: bytes) -> None:
        """Refuse a second sum of a round.

        Answers about many chosen sums would reveal the key to a coordinator.
        """
        opened = self._store.state.revealed_as(task.round)
        if opened is not None and opened.sum_digest != Blob.of(total).digest:
            raise RefusedError(f"Another sum of round {task.round} was presented before.")

    def _opened(self, task: Reveal, total: bytes) -> _Publishable:
        """Use the key on a sum.

        Raises:
            ProtocolError: the sum cannot be opened.
            RefusedError: honest clients cannot reach the sum, or its tags are wrong.
        """
        member = self._membership
        names = member.tag_names(task.round, task.contributions) if member.is_tagged else None
        vector = self._model.vector(task.kind)
        aggregate = vector.member.reveal(total, len(task.contributions), names)
        if member.is_tagged:
            # Its tags are right: the answer depends on what members encrypted, not on the key.
            self._store.settle(task.round)
        self._counts.count(task, task.contributions)
        self._model.check_sum(task.kind, aggregate, task.contributions)
        return _Publishable(contributions=task.contributions, aggregate=aggregate)

    def _without_unfit(self, task: Reveal, error: FedrecError) -> _Publishable | _Refusal:
        """Return the sum of the cells that are fit, and pause the others.

        Args:
            error: the problem of the whole sum.
        """
        fits = self._attribution
        if not fits.is_useful(task):
            return self._unfit(task, error)
        try:
            parts = fits.open_cells(task)
        except RefusedError as problem:
            return self._unfit(task, problem, problem.message)
        if not parts.unfit:
            forged = self._is_fetched(task) and isinstance(error, WrongTags)
            return self._unfit(task, error, _NOT_THEIRS if forged else _UNFIT)
        if not (fits.is_enough(parts.good) and fits.may_pause(task, parts.unfit)):
            return self._unfit(task, error)
        try:
            self._model.check_sum(task.kind, parts.total, parts.good)
        except RefusedError as problem:
            return self._unfit(task, problem)
        self._pause(task, parts)
        if task.kind == "train" and divides_by_count(self._membership.plan):
            # The divisor counted the paused cells, too.
            return _Refusal(error=error, public_reason=_COUNTED_AGAIN, is_final=True)
        return _Publishable(contributions=parts.good, aggregate=parts.total)

    def _unfit(self, task: Reveal, error: FedrecError, public_reason: str = _UNFIT) -> _Refusal:
        """Return the refusal of a sum after the key was used, which costs no cell."""
        if self._is_fetched(task):
            counts = isinstance(error, WrongTags)
        else:
            # A sum with the right tags decrypts to what members encrypted, whatever the key.
            counts = not (self._membership.is_tagged and isinstance(error, SumOutOfBounds))
        return _Refusal(
            error=error, public_reason=public_reason, is_final=True, counts_against_key=counts
        )

    def _pause(self, task: Reveal, parts: CellFindings) -> None:
        """Pause the unfit cells: first on disk, then in the audit log and for people."""
        member = self._membership
        kept = manifest_digest(member.run, task.round, parts.good)
        cells = tuple(sorted(parts.unfit))
        # Otherwise a roster that is being made meanwhile would not name them.
        with changing(self._folder) as folder:
            self._store.record_paused(task.round, cells, kept, newest=folder.last_epoch)
        for cell, error in sorted(parts.unfit.items()):
            paused = type(error)(f"Cell {cell} is paused: {error.message}")
            self._context.refused("cell_paused", task.round, paused)
        detail = (
            f"{_listed(parts.unfit)}: one of its clients sent something that no honest client "
            "sends. Resume it with `fedrec keys roster resume CELL`"
        )
        self._journal.tell("cell_paused", task.round, detail=detail)

    def _send(self, task: Reveal, found: _Publishable) -> None:
        """Send the signed result."""
        member, contributions, aggregate = self._membership, found.contributions, found.aggregate
        shared = self._model.applied(task.kind, aggregate)
        seal = member.seal_of(task.round)
        sealed = seal.seal_aggregate(self._model.vector(task.kind).pack(aggregate))
        rows = self._model.rows_after(shared)
        following = replace(
            self._next_statement(task, contributions),
            state_tag=seal.state_tag(shared.canonical_bytes()),
            published_digest=Blob.of(sealed).digest,
            metrics=aggregate[METRICS_SLICE].astype("<i8").tobytes(),
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
            trained=shared.trained,
        )
        statement = member.sign_statement(following)
        # On disk before it is announced, so that a coordinator that loses its folder can begin with
        # it.
        self._store.record_opened(
            statement,
            pack_headers(contributions),
            sealed,
            seal.seal_snapshot(self._model.stored(shared)),
        )
        self._link.submit_reveal(statement, sealed)

    def _next_statement(self, task: Reveal, contributions: Contributions) -> RevealStatement:
        """Return this revealer's statement that follows its last one, not yet signed.

        It names all cells that are paused by now.
        """
        member, before = self._membership, self._store.state.head
        is_noisy = task.kind == "train" and member.layout.mechanism is not None
        is_new = before is None or before.round != task.round
        return RevealStatement(
            federation=member.federation,
            run=member.run,
            round=task.round,
            epoch=member.epoch,
            client_id=member.client_id,
            manifest_digest=manifest_digest(member.run, task.round, contributions),
            paused=self._attribution.paused,
            sequence=1 if before is None else before.sequence + 1,
            previous=UNSAID if before is None else before.digest(),
            kind=task.kind,
            charged=(0 if before is None else before.charged) + (is_noisy and is_new),
        )

    def _refuse(self, task: Reveal, refusal: _Refusal) -> RevealRefused:
        """Record a refusal permanently, tell the coordinator, and return the error."""
        error = refusal.error
        if refusal.is_final:
            self._store.settle(task.round, refused=True, counts=refusal.counts_against_key)
        refused = RevealRefused(error.message, remedy=error.remedy or _REMEDY)
        noted = error if isinstance(error, PartialCell | SumOutOfBounds) else refused
        self._context.refused("reveal_refused", task.round, noted)
        following = replace(
            self._next_statement(task, task.contributions),
            refused=" ".join(refusal.public_reason.split())[:MAX_REASON_CHARS],
            trained=self._model.shared.trained,
        )
        statement = self._membership.sign_statement(following)
        self._store.record_statement(statement)
        with suppress(FedrecError):
            # If the coordinator rejects it, it has abandoned the round already, or it lies.
            self._link.submit_reveal(statement, b"")
        return refused


def _listed(cells: Iterable[int]) -> str:
    """Return the names of cells as text."""
    found = sorted(cells)
    return f"cell{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
