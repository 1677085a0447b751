"""Opening a round's sum: the one place where the key authority's decryption key is used.

It must never be made to open anything but the sum of enough members' signed updates of one round,
and only once per round. So the sum that is opened here is one that the revealer added up itself,
from contributions whose signatures it checked; above `rounds.recompute_limit` contributions it is
the coordinator's, whose tags must be those of exactly these contributions.

A closed round waits for its word. So what it refuses it says, too: the coordinator gives the round
up then. What it says of a sum that it opened is one sentence, whatever was wrong.

A sum that is unfit is taken apart by cells (`attribution`): what the good ones add up to is
published, the others are named and paused.
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
"""On so many sums the key may be used in vain in an epoch: each answer tells about it."""
_UNFIT = "the sum is out of bounds; one of these clients sent it"
_COUNTED_AGAIN = "the sum is out of bounds; the clients of the other cells are counted again"
_NOT_THEIRS = "the coordinator's sum is not that of its contributions, each cell of which is fit"
_REMEDY = "Nothing was revealed; see audit.jsonl, and tell the data owners if it happens again."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A sum that may be published, and whose contributions add up to it."""

    contributions: Contributions
    aggregate: NDArray[np.int64]


class SumOpening:
    """Opens the sums that may be opened, and refuses everything else."""

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
        """Open a round's sum and send the signed result, or say that it is refused.

        Raises:
            RevealRefused: the task is not one that may be done; the coordinator was told.
            RoundError: the round is over, or starts from another version than the model's.
        """
        if task.round <= self._model.version:
            raise RoundError(f"Round {task.round} is published already.")
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
        """Send what this sum was opened as before, if it was; tell whether it was."""
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
        # Where a cell was paused, what was said is of the others alone.
        asked = revealed is not None and revealed.manifest_digest == digest
        kept = revealed.kept if revealed is not None and asked else digest
        if said.manifest_digest not in (digest, kept):
            return False
        self._link.submit_reveal(said, self._store.read(opened.sealed))
        return True

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
        terms = self._model.terms(task.round, task.kind)
        member.check_contributions(terms, task.contributions)
        paused = self._attribution.listed(task)
        if paused:
            raise RefusedError(
                f"Round {task.round} has contributions of cells that are paused: {_listed(paused)}."
            )
        opened = self._store.state.revealed_as(task.round)
        if opened is not None:
            manifest = manifest_digest(member.run, task.round, task.contributions)
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

    def _total(self, task: Reveal) -> tuple[bytes, FedrecError | None]:
        """Return the sum that is opened, or why the contributions have none."""
        member = self._membership
        if self._is_fetched(task):
            # Under paillier it hands out a refreshed sum, which has another digest than announced.
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
                f"The coordinator's sum of round {task.round} is not the sum of its "
                f"{len(task.contributions)} contributions."
            )
        return own, None

    def _open(self, task: Reveal, total: bytes, problem: FedrecError | None) -> None:
        """Use the key on a sum, or on those of its cells where it is unfit; send what came of it.

        Args:
            problem: why the contributions have no sum; None where they have.
        """
        member = self._membership
        manifest = manifest_digest(member.run, task.round, task.contributions)
        opened, sum_digest = self._store.state.revealed_as(task.round), Blob.of(total).digest
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
            SumOutOfBounds: no honest clients add up to it.
        """
        self._model.check_sum(task.kind, aggregate, contributions)
        return _Opened(contributions=contributions, aggregate=aggregate)

    def _without_unfit(self, task: Reveal, error: FedrecError) -> _Opened:
        """Return the sum of the cells that are fit, and pause the others.

        Args:
            error: what is wrong with the sum of all.

        Raises:
            RevealRefused: nothing can be published; the coordinator was told.
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
            # What it would be divided by counted the paused cells, too.
            raise self._unfit(task, error, _COUNTED_AGAIN, tells=False)
        return found

    def _pause(self, task: Reveal, parts: CellFindings) -> None:
        """Pause the unfit cells: on disk first, then in the audit log and for people."""
        member = self._membership
        kept = manifest_digest(member.run, task.round, parts.good)
        cells = tuple(sorted(parts.unfit))
        # Or a roster that is being made meanwhile would not name them, and nobody would know.
        with changing(self._folder) as folder:
            self._store.record_paused(task.round, cells, kept, newest=folder.last_epoch)
        for cell, error in sorted(parts.unfit.items()):
            paused = type(error)(f"Cell {cell} is paused: {error.message}")
            self._context.refused("cell_paused", task.round, paused)
        detail = (
            f"{_listed(parts.unfit)}: one of its clients sent what no honest client sends; "
            "it takes part again after `fedrec keys roster resume CELL`"
        )
        self._journal.tell("cell_paused", task.round, detail=detail)

    def _unfit(
        self, task: Reveal, error: FedrecError, told: str = _UNFIT, *, tells: bool = True
    ) -> RevealRefused:
        """Note for good that a sum is refused, tell the coordinator, and return the error.

        Args:
            tells: whether nobody is paused for what the refusal may tell about the key.
        """
        self._note_refusal(task, error, tells=tells)
        return self._refusal(task, error, told)

    def _send(self, task: Reveal, found: _Opened) -> None:
        """Send the signed result, over the rows that enough cells vouch for."""
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
        # On disk before anybody hears of it: a coordinator that loses its folder begins with it.
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
        """Return this revealer's signed word on a round, which follows its last one.

        All cells that are paused by now are named in it.
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
        """Keep for good that the answer is a refusal; count it where it tells about the key."""
        member = self._membership
        counted = self._is_fetched(task)
        if counted and not (tells and isinstance(error, WrongTags)):
            self._store.forgive_sum()
            counted = False
        # What has the right tags was decrypted to what members encrypted, whatever the key.
        tells = tells and not (isinstance(error, SumOutOfBounds) and member.is_tagged)
        self._store.record_refused(task.round, counted=tells and not counted)

    def _refusal(self, task: Reveal, error: FedrecError, told: str) -> RevealRefused:
        """Write down and tell the coordinator that a sum is refused, and return the error.

        Args:
            told: why, for the coordinator and its operators.
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
            # A coordinator that does not take it gave the round up before, or lies.
            self._link.submit_reveal(statement, b"")
        return refused


def _listed(cells: Iterable[int]) -> str:
    """Name cells for people."""
    found = sorted(cells)
    return f"cell{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
