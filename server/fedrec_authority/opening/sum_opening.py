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
from dataclasses import dataclass
from typing import Any

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
from fedrec.wire.fields import MAX_PAUSED, MAX_REASON_CHARS
from fedrec.wire.messages import UNSAID, Reveal, RevealStatement, UploadHeader, manifest_digest
from fedrec.wire.recovery import pack_headers
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import changing
from fedrec_authority.opening.attribution import Attribution, CellFindings
from fedrec_authority.opening.cell_counts import CellCounts, Contributions, OpeningContext, fetch

MOST_REFUSED = MAX_PAUSED
"""The number of unfit sums in an epoch for which the key may be used.

Each answer reveals something about it.
"""
_UNFIT = "the sum is out of bounds, and one of these clients caused it"
_COUNTED_AGAIN = "the sum is out of bounds, and the clients of the other cells are counted again"
_NOT_THEIRS = (
    "the coordinator's sum does not match its contributions, and each of their cells is fit"
)
_REMEDY = "Nothing was opened. See audit.jsonl, and tell the data owners if it happens again."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A sum that may be published, with its contributions."""

    contributions: Contributions
    aggregate: NDArray[np.int64]


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
            RoundError: the round is over, or it starts from another version than the model's.
        """
        if task.round <= self._model.version:
            raise RoundError(f"Round {task.round} was already published.")
        if self._sent_again(task):
            return
        self._journal.tell("revealing", task.round)
        with self._journal.timed(task.round, "seconds_revealing", "revealed"):
            try:
                self._check(task)
                total, problem = self._total(task)
            except (ProtocolError, RefusedError) as error:
                raise self._refusal(task, error, error.message) from error
            self._open(task, total, problem)

    def _sent_again(self, task: Reveal) -> bool:
        """Send the earlier result for this sum, and tell whether there was one."""
        member, opened = self._membership, self._store.state.opened
        if opened is None:
            return False
        said = opened.statement
        if (said.run, said.round, said.epoch) != (member.run, task.round, task.epoch):
            return False
        digest, revealed = (
            manifest_digest(member.run, task.round, task.contributions),
            self._store.state.revealed_as(task.round),
        )
        # If a cell was paused, the earlier answer covers only the others.
        asked = revealed is not None and revealed.manifest_digest == digest
        kept = revealed.kept if revealed is not None and asked else digest
        if said.manifest_digest not in (digest, kept):
            return False
        self._link.submit_reveal(said, self._store.read(opened.sealed))
        return True

    def _check(self, task: Reveal) -> None:
        """Refuse as much as possible before fetching anything."""
        member = self._membership
        if task.epoch != member.epoch:
            raise RefusedError(
                f"Round {task.round} is of epoch {task.epoch}, this client's epoch is "
                f"{member.epoch}."
            )
        if task.base_round != self._model.version:
            raise RefusedError(
                f"Round {task.round} starts from version {task.base_round}, this client has "
                f"version {self._model.version}."
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
                f"{MOST_REFUSED} sums that had to be refused, such as ones with wrong tags, were "
                f"presented in epoch {self._membership.epoch}. Every further answer would reveal "
                "something about the key.",
                remedy="Tell the data owners: they need a new key epoch, and perhaps another "
                "coordinator, or a roster without a member whose software was changed.",
            )

    def _is_fetched(self, task: Reveal) -> bool:
        """Tell whether a sum is checked by its tags, without adding up its contributions."""
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

    def _open(self, task: Reveal, total: bytes, problem: FedrecError | None) -> None:
        """Use the key on a sum or, if it is unfit, on those of its cells, and send the result.

        Args:
            problem: why the contributions have no sum, or None if they have one.
        """
        member = self._membership
        manifest = manifest_digest(member.run, task.round, task.contributions)
        opened, sum_digest = self._store.state.revealed_as(task.round), Blob.of(total).digest
        if opened is not None and opened.sum_digest != sum_digest:
            # Answers about many chosen sums would reveal the key to a coordinator.
            error: FedrecError = RefusedError(
                f"Another sum of round {task.round} was presented before."
            )
            raise self._refusal(task, error, error.message)
        fetched = self._is_fetched(task)
        names = member.tag_names(task.round, task.contributions) if member.is_tagged else None
        # On disk before the key is used, so that a round has only one sum, even after a crash.
        self._store.record_reveal(task.round, manifest, sum_digest, tagged=fetched)
        try:
            if problem is not None:
                raise problem
            vector = self._model.vector(task.kind)
            aggregate = vector.member.reveal(total, len(task.contributions), names)
            self._counts.count(task, task.contributions)
            found = self._checked(task, task.contributions, aggregate)
        except (ProtocolError, RefusedError) as error:
            found = self._without_unfit(task, error)
        if fetched:
            self._store.forgive_sum()
        self._send(task, found)

    def _checked(
        self, task: Reveal, contributions: Contributions, aggregate: NDArray[np.int64]
    ) -> _Opened:
        """Return an opened sum that may be published.

        Raises:
            SumOutOfBounds: honest clients cannot reach it.
        """
        self._model.check_sum(task.kind, aggregate, contributions)
        return _Opened(contributions=contributions, aggregate=aggregate)

    def _without_unfit(self, task: Reveal, error: FedrecError) -> _Opened:
        """Return the sum of the cells that are fit, and pause the others.

        Args:
            error: the problem of the whole sum.

        Raises:
            RevealRefused: nothing can be published. The coordinator was told.
        """
        fits = self._attribution
        if not fits.is_of_use(task):
            raise self._unfit(task, error)
        try:
            parts = fits.take_apart(task)
        except RefusedError as problem:
            raise self._unfit(task, problem, problem.message) from problem
        if not parts.unfit:
            forged = self._is_fetched(task) and isinstance(error, WrongTags)
            raise self._unfit(task, error, _NOT_THEIRS if forged else _UNFIT)
        if not (fits.is_enough(parts.good) and fits.may_pause(task, parts.unfit)):
            raise self._unfit(task, error)
        try:
            found = self._checked(task, parts.good, parts.total)
        except RefusedError as problem:
            raise self._unfit(task, problem) from problem
        self._pause(task, parts)
        if task.kind == "train" and divides_by_count(self._membership.plan):
            # The divisor counted the paused cells, too.
            raise self._unfit(task, error, _COUNTED_AGAIN, tells=False)
        return found

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

    def _unfit(
        self, task: Reveal, error: FedrecError, told: str = _UNFIT, *, tells: bool = True
    ) -> RevealRefused:
        """Record a refusal permanently, tell the coordinator, and return the error.

        Args:
            tells: whether the refusal may reveal something about the key without pausing a cell.
        """
        self._note_refusal(task, error, tells=tells)
        return self._refusal(task, error, told)

    def _send(self, task: Reveal, found: _Opened) -> None:
        """Send the signed result over the rows that enough cells vouch for."""
        member, contributions = self._membership, found.contributions
        try:
            aggregate = self._counts.left_in(task.kind, found.aggregate, contributions)
        except RefusedError as error:
            raise self._unfit(task, error, error.message, tells=False) from error
        shared = self._model.applied(task.kind, aggregate)
        seal = member.seal_of(task.round)
        sealed = seal.seal_aggregate(self._model.vector(task.kind).pack(aggregate))
        rows = self._model.rows_after(shared)
        statement = self._statement(
            task,
            contributions=contributions,
            state_tag=seal.state_tag(shared.canonical_bytes()),
            published_digest=Blob.of(sealed).digest,
            metrics=aggregate[METRICS_SLICE].astype("<i8").tobytes(),
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
            trained=shared.trained,
        )
        # On disk before it is announced, so that a coordinator that loses its folder can begin with
        # it.
        self._store.record_opened(
            statement,
            pack_headers(contributions),
            sealed,
            seal.seal_snapshot(self._model.stored(shared)),
        )
        self._link.submit_reveal(statement, sealed)

    def _statement(
        self, task: Reveal, *, contributions: tuple[UploadHeader, ...], **said: Any
    ) -> RevealStatement:
        """Return this revealer's signed statement on a round, which follows its last one.

        It names all cells that are paused by now.
        """
        member, before = self._membership, self._store.state.head
        is_noisy = task.kind == "train" and member.layout.mechanism is not None
        is_new = before is None or before.round != task.round
        statement = RevealStatement(
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
            **said,
        )
        return member.sign_statement(statement)

    def _note_refusal(self, task: Reveal, error: FedrecError, *, tells: bool) -> None:
        """Record a refusal permanently, and count it if it reveals something about the key."""
        member = self._membership
        counted = self._is_fetched(task)
        if counted and not (tells and isinstance(error, WrongTags)):
            self._store.forgive_sum()
            counted = False
        # A sum with the right tags decrypts to what members encrypted, whatever the key.
        tells = tells and not (isinstance(error, SumOutOfBounds) and member.is_tagged)
        self._store.record_refused(task.round, counted=tells and not counted)

    def _refusal(self, task: Reveal, error: FedrecError, told: str) -> RevealRefused:
        """Record a refusal, tell the coordinator, and return the error.

        Args:
            told: the reason, for the coordinator and its operators.
        """
        refused = RevealRefused(error.message, remedy=error.remedy or _REMEDY)
        noted = error if isinstance(error, PartialCell | SumOutOfBounds) else refused
        self._context.refused("reveal_refused", task.round, noted)
        reason = " ".join(told.split())[:MAX_REASON_CHARS]
        statement = self._statement(
            task,
            contributions=task.contributions,
            refused=reason,
            trained=self._model.shared.trained,
        )
        self._store.record_statement(statement)
        with suppress(FedrecError):
            # If the coordinator rejects it, it has abandoned the round already, or it lies.
            self._link.submit_reveal(statement, b"")
        return refused


def _listed(cells: Iterable[int]) -> str:
    """Return the names of cells as text."""
    found = sorted(cells)
    return f"cell{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
