"""The state of a run: plain frozen values, rebuilt from the store after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from fedrec.identity.cells import Partition, core_among, whole_among, whole_cells
from fedrec.ids import ClientId, RoundId
from fedrec.plan.protections import opening_seconds
from fedrec.plan.schema import RoundSettings
from fedrec.privacy.mechanism import Mechanism
from fedrec.protection import PROTECTIONS, ProtectionPlan, Steps
from fedrec.protection.round_protocol import SUMMING
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import (
    Report,
    RevealStatement,
    RoundKind,
    UploadHeader,
    manifest_digest,
)
from fedrec_server.rounds.by_client import Asked, ByClient, Counted

_PASSED_OVER_ROUNDS = 16
"""For this many training rounds, a client that ignored a count round isn't a newcomer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCount:
    """The last published count round, if training rounds are divided by its counts.

    Such rounds include exactly the clients that it counted. If one of them stays away, or a new one
    appears, the connected ones are counted again. The trained rows stay the same, the divisors
    change. All but `clients` is forgotten with the process.

    Attributes:
        clients: the clients that it counted.
        asked: the clients that it was offered to. One that did not answer isn't a newcomer
            for a while.
        trained: the number of training rounds published before it.
        waits_since: the time since which training waits for missing clients.
        unanswered: whether one of them did not answer a training round.
        again: whether the next round is a count round.
    """

    clients: frozenset[ClientId]
    asked: frozenset[ClientId] = frozenset()
    trained: int = 0
    waits_since: float | None = None
    unanswered: bool = False
    again: bool = False

    def after_looking_at(
        self,
        here: frozenset[ClientId],
        now: float,
        *,
        trained: int,
        patience: float,
        fits: bool,
        has_more: Callable[[frozenset[ClientId]], bool],
    ) -> LastCount:
        """Decide the next round's kind from the connected clients before it opens.

        Args:
            here: clients that could be in a sum.
            trained: the number of published training rounds.
            patience: how long a client may stay away, in seconds.
            fits: whether a sum of exactly `clients` is allowed.
            has_more: returns whether a count of these clients would find more than the last one
                did.
        """
        since = None
        if not self.clients <= here:
            # If the clock is set back, the wait must not last longer.
            since = now if self.waits_since is None else min(self.waits_since, now)
        late = since is not None and now >= since + patience
        passed = self.asked if trained < self.trained + _PASSED_OVER_ROUNDS else frozenset()
        newcomers = has_more(here - (passed - self.clients))
        again = self.unanswered or late or newcomers or not fits
        return replace(self, waits_since=since, again=again)


PHASES: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *(step.phase for kind in PROTECTIONS.values() for step in kind.steps.all),
            SUMMING,
            "revealing",
        ]
    )
)
"""The phases of all protections' rounds: their steps, "summing" and "revealing"."""

NO_ROUND = RoundId(0)

NOTHING_SENT: ByClient[bytes] = ByClient()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The plan's rules for rounds.

    Attributes:
        run, epoch: the run and its key epoch.
        seed: the federation's public seed, on which selection depends.
        needs_reveal: whether the coordinator cannot read a round's sum.
        rounds: the plan's section.
        fewest_revealed: the roster's own minimum of summands.
        most_summands: the largest number of updates for which the protection is proven.
        hides_updates: whether the coordinator cannot read a single update.
        steps: the messages that every client of a round sends.
        vector_seconds: the time in which a slow line uploads a vector.
        mechanism: the noise of training sums and its budget, or None if sums are exact.
        charges_updates: whether each noisy update is a release, because the coordinator may read
            it. If false, the sum is the release, once it can be opened.
        exact: whether training rounds are divided by the last count round's counts, and so include
            exactly the clients that it counted.
        revealer: the only party that opens sums, or None if each member decrypts the published sum.
        n_items: the number of items in the catalogue.
        entries: the plan of the largest vector if its sums grow with the round's clients, or None.
        partition: the cells, whose clients are always summed together.
        fewest_clients: the number below which no client would take part.
        fewest_cells: the number of whole cells below which no sum is opened.
    """

    run: str
    epoch: int
    seed: int
    needs_reveal: bool
    rounds: RoundSettings
    fewest_revealed: int
    most_summands: int | None
    hides_updates: bool
    steps: Steps
    vector_seconds: float
    mechanism: Mechanism | None
    charges_updates: bool
    exact: bool
    revealer: ClientId | None
    n_items: int
    entries: ProtectionPlan | None
    partition: Partition
    fewest_clients: int
    fewest_cells: int

    def summable(self, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return the clients whose updates may be summed. See `whole_cells`."""
        return whole_among(self.partition, clients)

    def suffices(self, clients: Collection[ClientId]) -> bool:
        """Return whether a sum of these clients hides each among enough others."""
        if len(core_among(self.partition, clients)) < self.needed:
            return False
        return self.n_cells(clients) >= self.fewest_cells

    def n_cells(self, clients: Collection[ClientId]) -> int:
        """Return how many whole cells these clients are, or 1 without cells."""
        return len(list(whole_cells(self.partition, clients))) if self.partition.cell_size else 1

    def may_begin(self, clients: Collection[ClientId]) -> bool:
        """Return whether these clients would take part in a round of their own."""
        return self.suffices(clients) and len(clients) >= self.fewest_clients

    def report_seconds(self, kind: RoundKind, n_summands: int) -> float:
        """Return how long clients may take to report the content of a sum of this many updates."""
        patience = self.rounds.report_seconds
        if self.entries is None or kind == "count":
            return patience
        return max(patience, opening_seconds(self.entries, n_summands, adds_up=False))

    def without(self, cells: Collection[int]) -> Rules:
        """Return the rules once some cells are paused."""
        return replace(self, partition=self.partition.with_paused(cells))

    @property
    def shares_key(self) -> bool:
        """Return whether each member decrypts the published sum, as in the papers' protocol."""
        return self.needs_reveal and self.revealer is None

    @property
    def needed(self) -> int:
        """Return the minimum number of clients, without guests, to open and publish a round."""
        hidden = self.needs_reveal or self.hides_updates
        return self.rounds.fewest_summands(hidden, self.fewest_revealed)

    @property
    def most_counted(self) -> int | None:
        """Return the maximum number of updates of a round, or None if only selection limits it."""
        wanted = self.rounds.clients_per_round
        limits = [max(wanted, self.needed)] if wanted else []
        if self.most_summands is not None:
            limits.append(self.most_summands)
        elif self.needs_reveal:
            limits.append(max(self.rounds.recompute_limit, self.needed))
        return min(limits, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The round in progress.

    Attributes:
        base_round: the published round whose model is trained.
        asked: the clients to which the round is offered.
        accepted: the durable updates, by client.
        complete_from: the number of updates below which it cannot be complete, known from the last
            check.
        total: the coordinator's sum, once computed.
        messages: messages other than vectors, by step and client. `accepted` has the vectors.
            Vectors that arrived but are left out of the sum are included, without content.
    """

    number: RoundId
    kind: RoundKind
    base_round: RoundId
    epoch: int
    phase: str
    opened_at: float
    deadline_at: float
    asked: Asked
    accepted: Counted = field(default_factory=Counted)
    complete_from: int = field(default=0, compare=False)
    total: Blob | None = None
    messages: Mapping[str, ByClient[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sent = {step: found for step, found in self.messages.items() if found}
        object.__setattr__(self, "messages", sent)

    def sent(self, step: str) -> ByClient[bytes]:
        """Return the messages of a step."""
        return self.messages.get(step, NOTHING_SENT)

    @property
    def of_one_model(self) -> Mapping[ClientId, UploadHeader]:
        """Return the largest group of updates that start from the same model.

        A reader refuses a round whose updates start from different models. Once the coordinator
        knows the model, it accepts only updates that start from it. In an epoch's first round, or
        without encryption, it does not know the model.
        """
        sizes = self.accepted.models
        if len(sizes) < 2:
            return self.accepted
        chosen = max(sizes, key=lambda base_state: (sizes[base_state], base_state))
        return {who: one for who, one in self.accepted.items() if one.base_state == chosen}

    @property
    def n_of_one_model(self) -> int:
        """Return the number of updates in `of_one_model`, without looking at each."""
        return max(self.accepted.models.values(), default=0)

    def manifest_digest(self, run: str, left_out: Collection[ClientId] = ()) -> bytes:
        """Return the digest that a reveal statement must name.

        Args:
            left_out: clients of cells that the statement pauses.
        """
        kept = [one for who, one in self.accepted.items() if who not in left_out]
        return manifest_digest(run, self.number, tuple(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """A published ciphertext sum on whose content no two clients agree yet.

    Attributes:
        until: when the run continues without their reports, which it does except after a count
            round.
    """

    round: RoundId
    kind: RoundKind
    until: float
    reports: Mapping[ClientId, Report] = field(default_factory=dict)

    @property
    def agreed(self) -> Report | None:
        """Return the content on which two clients agree, or None if no two agree."""
        counts = Counter(report.content() for report in self.reports.values())
        return next((one for one in self.reports.values() if counts[one.content()] > 1), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The record of a cell, or of a single client, that did not answer.

    Attributes:
        times: the number of rounds in a row in which one of its clients was asked and did not
            answer.
        until: the last round in which they sit out.
    """

    times: int
    until: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The reason why a run is over."""

    reason: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """The digest of a published model under the group key of an epoch.

    The key authority or two clients named it.
    """

    epoch: int
    digest: bytes

    @classmethod
    def named_by(cls, signed: RevealStatement | Report) -> KnownModel:
        """Return the model that a statement or a report is about."""
        return cls(epoch=signed.epoch, digest=signed.state_tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandonments:
    """The rounds that were abandoned since the last published one. See `is_stalled`.

    Attributes:
        in_row: their number.
        reason: why the last of them was abandoned.
        unanswered: the clients that were asked in it and did not answer.
        retry_at: the earliest time at which the next round may open.
    """

    in_row: int = 0
    reason: str = ""
    unanswered: frozenset[ClientId] = frozenset()
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole run.

    Attributes:
        rules: the plan's rules for rounds.
        roster: the members of this key epoch that train.
        last_round: the last round number used, published or not.
        published: the last published round: the model's version.
        recovered: the round from which a recovered folder begins, or 0.
        begins_at: the highest number that any party knew at the recovery, or None if there was
            none.
        counted: whether the round of item holder counts is published.
        trained: the number of published training rounds.
        evaluated: whether the closing evaluation is published.
        charged: the number of training rounds that released something, published or not.
        known: the published model, or None if it is unknown.
        reporting: the published round, until two clients agree on its sum's content.
        rows: the item rows that vectors cover after the count, or None before it.
        last_count: the clients whose counts divide training sums, or None if sums aren't divided.
        abandoned: the number of rounds abandoned in the whole run.
        abandonments: the abandoned rounds since the last published one.
        silences: the cells or single clients that sit out for a while.
        current: the round in progress, or None between rounds.
        stop_asked: whether the operator asked to stop after the current round.
        ending: why the run is over, or None before.
    """

    rules: Rules
    roster: frozenset[ClientId]
    last_round: RoundId = NO_ROUND
    published: RoundId = NO_ROUND
    recovered: RoundId = NO_ROUND
    begins_at: RoundId | None = None
    counted: bool = False
    trained: int = 0
    evaluated: bool = False
    charged: int = 0
    known: KnownModel | None = None
    reporting: Reporting | None = None
    rows: StatedRows | None = None
    last_count: LastCount | None = None
    abandoned: int = 0
    abandonments: Abandonments = field(default_factory=Abandonments)
    silences: Mapping[frozenset[ClientId], Silence] = field(default_factory=dict)
    current: Round | None = None
    stop_asked: bool = False
    ending: Ending | None = None

    @property
    def nothing_opened_since_recovery(self) -> bool:
        """Return whether no sum was opened since the folder was recovered.

        Until then members may know of later rounds than the key authority's backup.
        """
        return self.current is None and self.begins_at == self.last_round

    @property
    def next_number(self) -> RoundId:
        """Return the next round's number.

        If no sum was opened since the recovery, members may have answered the number after that
        of the recovered round. Once another epoch began, they cannot do so again.
        """
        is_first = self.nothing_opened_since_recovery and self.last_round == self.recovered
        skips = is_first and self.known is not None and self.known.epoch < self.rules.epoch
        return RoundId(self.last_round + 1 + skips)

    @property
    def next_kind(self) -> RoundKind | None:
        """Return the next round's kind, or None when all rounds are published."""
        if not self.counted:
            return "count"
        if self.trained < self.rules.rounds.total:
            return "count" if self.last_count is not None and self.last_count.again else "train"
        return None if self.evaluated else "evaluate"

    @property
    def releases(self) -> int:
        """Return how many noisy releases the run made, at most (`Mechanism.releases`)."""
        round_, by = self.current, self.rules.mechanism
        if by is None:
            return 0
        # A charged sum that is being opened is no part that was published before.
        opening = round_ is not None and (round_.kind, round_.phase) == ("train", "revealing")
        return by.releases(self.charged, self.trained + opening)

    @property
    def epsilon(self) -> float | None:
        """Return the largest epsilon of a user so far, or None without noise."""
        by = self.rules.mechanism
        return None if by is None else by.epsilon_after(self.releases)

    def expected(self, kind: RoundKind) -> frozenset[ClientId]:
        """Return the clients that a round must consist of, or an empty set if this is not fixed."""
        found = self.last_count
        return found.clients if kind == "train" and found is not None else frozenset()

    @property
    def base_state(self) -> bytes | None:
        """Return the model digest that updates must name, if it is known here."""
        return self.known.digest if self.known and self.known.epoch == self.rules.epoch else None

    def rows_of(self, kind: RoundKind) -> StatedRows:
        """Return the item rows that a round's vectors cover."""
        if kind == "count" or self.rows is None:
            return StatedRows.whole(self.rules.n_items)
        return self.rows

    def covers(self, kind: RoundKind, rows: StatedRows) -> bool:
        """Return whether a header names the rows of a round, as far as the coordinator knows them.

        Members name the list under their epoch's key. After a change of epoch, the coordinator
        knows only the number of rows until the next statement.
        """
        wanted = self.rows_of(kind)
        unknown = self.rules.needs_reveal and self.base_state is None
        named = unknown or rows.digest == wanted.digest
        return rows.n_rows == wanted.n_rows and named

    @property
    def rounds_published(self) -> int:
        """Return the number of published rounds of all kinds."""
        return int(self.counted) + self.trained + int(self.evaluated)

    def with_published(
        self,
        kind: RoundKind,
        number: RoundId,
        known: KnownModel | None,
        rows: StatedRows | None,
    ) -> State:
        """Return the state after `number` was published.

        Args:
            known: the resulting model, if known.
            rows: the item rows that vectors cover from now on, or None until clients report them.
        """
        return replace(
            self,
            current=None,
            published=number,
            abandonments=Abandonments(),
            known=known,
            rows=rows,
            counted=self.counted or kind == "count",
            trained=self.trained + (kind == "train"),
            evaluated=self.evaluated or kind == "evaluate",
        )
