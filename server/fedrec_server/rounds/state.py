"""Where a run stands: plain frozen values, rebuilt from the store after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from fedrec.identity.cells import Partition, core_among, whole_among, whole_cells
from fedrec.ids import ClientId, RoundId
from fedrec.plan.protections import opening_seconds
from fedrec.plan.schema import RoundSettings
from fedrec.protection import PROTECTIONS, ProtectionPlan, Steps
from fedrec.protection.round_protocol import ONE_STEP, SUMMING
from fedrec.protection.settings import FEWEST_SUMMANDS
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import (
    Report,
    RoundKind,
    UploadHeader,
    manifest_digest,
)
from fedrec_server.rounds.by_client import Asked, ByClient, Counted

_PASSED_OVER_ROUNDS = 16
"""Training rounds for which a client goes uncounted that was here and did not answer a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCount:
    """The last published count round, where training rounds are divided by what it found.

    Such rounds are over exactly the clients that it counted. One of them that stays away, and one
    that comes, is a reason to count again over those who are here: which rows are trained stays as
    it is, what they are divided by does not. All but `clients` is forgotten with the process.

    Attributes:
        clients: whom it counted.
        asked: to whom it was offered; who let it pass is no newcomer for a while.
        trained: training rounds that were published before it.
        waits_since: since when no training round opens because some of them are not here.
        unanswered: whether one of them let a training round pass.
        again: whether the next round counts.
    """

    clients: frozenset[ClientId]
    asked: frozenset[ClientId] = frozenset()
    trained: int = 0
    waits_since: float | None = None
    unanswered: bool = False
    again: bool = False

    def noticed(
        self,
        here: frozenset[ClientId],
        now: float,
        *,
        trained: int,
        patience: float,
        fits: bool,
        has_more: Callable[[frozenset[ClientId]], bool],
    ) -> LastCount:
        """Decide what the next round is, from who is here before it opens.

        Args:
            here: who could be in a sum.
            trained: training rounds that are published.
            patience: seconds that a client may stay away.
            fits: whether a sum may be over `clients`, and them alone.
            has_more: tells whether a count of some clients would find more than the last one did.
        """
        since = None
        if not self.clients <= here:
            # A clock that was set back must not lengthen it.
            since = now if self.waits_since is None else min(self.waits_since, now)
        late = since is not None and now >= since + patience
        passed = self.asked if trained < self.trained + _PASSED_OVER_ROUNDS else frozenset()
        newcomers = has_more(here - (passed - self.clients))
        again = self.unanswered or late or newcomers or not fits
        return replace(self, waits_since=since, again=again)


Phase = str
"""Where a round is: in one of its steps' phases, "summing" or "revealing"."""
PHASES: tuple[Phase, ...] = tuple(
    dict.fromkeys(
        [
            *(step.phase for kind in PROTECTIONS.values() for step in kind.steps.all),
            SUMMING,
            "revealing",
        ]
    )
)
"""Those of all protections, for whoever counts them apart."""

NO_ROUND = RoundId(0)

NOTHING_SENT: ByClient[bytes] = ByClient()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the plan says about rounds.

    Attributes:
        needs_reveal: whether the coordinator cannot read a round's sum.
        seed: the federation's public seed; selection depends on it.
        fewest_revealed: the roster's own minimum of summands.
        most_summands: the largest number of updates for which the protection is proven.
        hides_updates: whether the coordinator cannot read a single update.
        steps: what every client of a round sends.
        vector_seconds: how long a slow line takes for a vector.
        most_sums: how many noisy sums the privacy budget allows; None for any number.
        revealer: who alone opens sums; None where each member decrypts the published sum.
        budget: what the budget is, for people; empty where sums are exact.
        n_items: items in the catalogue.
        entries: the plan of the largest vector where its sums grow with the round's clients; else
            None.
        charges_updates: whether a noisy update is a release by itself, which the coordinator may
            read; else the sum is, once clients are asked for what opens it where they are.
        exact: whether training rounds are divided by what the last count round found, and so are
            over exactly the clients that it counted.
        partition: who is always summed together.
        fewest_clients: with fewer no client would take part, where their sum needs no more.
        fewest_cells: with fewer whole cells no sum is opened.
    """

    run: str
    epoch: int
    seed: int
    needs_reveal: bool
    rounds: RoundSettings
    fewest_revealed: int = 1
    most_summands: int | None = None
    hides_updates: bool = False
    steps: Steps = ONE_STEP
    vector_seconds: float = 0.0
    most_sums: int | None = None
    budget: str = ""
    charges_updates: bool = False
    exact: bool = False
    revealer: ClientId | None = None
    n_items: int = 0
    entries: ProtectionPlan | None = None
    partition: Partition = field(default_factory=Partition)
    fewest_clients: int = 0
    fewest_cells: int = 1

    def summable(self, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Return those of some clients whose updates may be added up; see `whole_cells`."""
        return whole_among(self.partition, clients)

    def suffices(self, clients: Collection[ClientId]) -> bool:
        """Tell whether a sum over these clients hides one among enough of them."""
        if len(core_among(self.partition, clients)) < self.needed:
            return False
        return self.n_cells(clients) >= self.fewest_cells

    def n_cells(self, clients: Collection[ClientId]) -> int:
        """Return how many whole cells these clients are; 1 where sums need none."""
        return len(list(whole_cells(self.partition, clients))) if self.partition.cell_size else 1

    def may_begin(self, clients: Collection[ClientId]) -> bool:
        """Tell whether a round of these clients is one that they would take part in."""
        return self.suffices(clients) and len(clients) >= self.fewest_clients

    def report_seconds(self, kind: RoundKind, n_summands: int) -> float:
        """Return how long clients may take to tell what is in a sum of so many updates."""
        patience = self.rounds.report_seconds
        if self.entries is None or kind == "count":
            return patience
        return max(patience, opening_seconds(self.entries, n_summands, adds_up=False))

    def without(self, cells: Collection[int]) -> Rules:
        """Return the rules once some cells are paused."""
        return replace(self, partition=self.partition.with_paused(cells))

    @property
    def shares_key(self) -> bool:
        """Return whether each member decrypts the published sum: the papers' protocol."""
        return self.needs_reveal and self.revealer is None

    @property
    def needed(self) -> int:
        """Return the fewest clients, guests left out, with which a round opens and is published."""
        if not (self.needs_reveal or self.hides_updates):
            return self.rounds.minimum_clients
        floor = max(FEWEST_SUMMANDS, self.rounds.minimum_summands, self.fewest_revealed)
        return max(self.rounds.minimum_clients, floor)

    @property
    def most_counted(self) -> int | None:
        """Return how many updates a round can have; None where only the asked are the limit."""
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
        complete_from: with fewer updates it isn't complete; known since it was looked at last.
        total: the coordinator's sum, once made.
        messages: what clients sent besides vectors, by step and client; vectors are `accepted`,
            and those that came but are left out of the sum are here, without content.
    """

    number: RoundId
    kind: RoundKind
    base_round: RoundId
    epoch: int
    phase: Phase
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
        """Return what clients sent in a step."""
        return self.messages.get(step, NOTHING_SENT)

    @property
    def of_one_model(self) -> Mapping[ClientId, UploadHeader]:
        """Return the largest group of updates that name the same model as their start.

        A reader of the round refuses it where they differ. Once the model is known here, only
        one is accepted; in an epoch's first round, and without encryption, nobody said which.
        """
        sizes = self.accepted.models
        if len(sizes) < 2:
            return self.accepted
        chosen = max(sizes, key=lambda base_state: (sizes[base_state], base_state))
        return {who: one for who, one in self.accepted.items() if one.base_state == chosen}

    @property
    def n_of_one_model(self) -> int:
        """How many updates `of_one_model` has, without a look at each."""
        return max(self.accepted.models.values(), default=0)

    def manifest_digest(self, run: str, left_out: Collection[ClientId] = ()) -> bytes:
        """Return the digest that a reveal statement must name.

        Args:
            left_out: clients of cells that it pauses.
        """
        kept = [one for who, one in self.accepted.items() if who not in left_out]
        return manifest_digest(run, self.number, tuple(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """A published ciphertext sum of which no two clients have said the same yet.

    Attributes:
        until: when the run goes on without their word, as it does after all but a count.
    """

    round: RoundId
    kind: RoundKind
    until: float
    reports: Mapping[ClientId, Report] = field(default_factory=dict)

    @property
    def agreed(self) -> Report | None:
        """Return what two clients say alike, or None."""
        said = Counter(report.content() for report in self.reports.values())
        return next((one for one in self.reports.values() if said[one.content()] > 1), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What came of asking those who are only counted together.

    Attributes:
        times: rounds in a row in which one of them was asked and did not answer.
        until: the last round in which they are not asked.
    """

    times: int
    until: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a run is over."""

    reason: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole run.

    Attributes:
        last_round: the last number used, published or not.
        published: the last published round: the model's version.
        recovered: the round with which a folder begins that was made anew; else 0.
        begins_at: the last number that anybody heard of when it was; None where it never was.
        counted: whether the round of item holder counts is published.
        trained: published training rounds.
        evaluated: whether the closing evaluation is published.
        charged: training rounds of which anything was ever released, published or not.
        known: of the published model, the epoch in which the key authority, or two clients, named
            it, and its digest under that epoch's key; None where nobody has.
        reporting: the published round, until two clients say alike what is in its sum.
        rows: the item rows that vectors cover after the count; None before it.
        last_count: of whom what training is divided by tells; None where nothing is.
        abandoned_in_row: rounds given up since the last published one; see `is_stalled`.
        gave_up: why the last of them was.
        unanswered: who was asked in it and did not answer.
        retry_at: when the next round may open at the earliest.
        silences: who is left alone for a while, by the clients that are only counted together.
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
    known: tuple[int, bytes] | None = None
    reporting: Reporting | None = None
    rows: StatedRows | None = None
    last_count: LastCount | None = None
    abandoned: int = 0
    abandoned_in_row: int = 0
    gave_up: str = ""
    unanswered: frozenset[ClientId] = frozenset()
    retry_at: float = 0.0
    silences: Mapping[frozenset[ClientId], Silence] = field(default_factory=dict)
    current: Round | None = None
    stop_asked: bool = False
    ending: Ending | None = None

    @property
    def may_learn(self) -> bool:
        """Whether nothing was opened since the folder was made anew.

        Until then members may know of later rounds than the key authority's backup.
        """
        return self.current is None and self.begins_at == self.last_round

    @property
    def next_number(self) -> RoundId:
        """Return the next round's number.

        Where nothing was opened since the folder was made anew, members may have answered the
        number after the recovered round's; once another epoch began, they cannot do so again.
        """
        is_first = self.may_learn and self.last_round == self.recovered
        skips = is_first and self.known is not None and self.known[0] < self.rules.epoch
        return RoundId(self.last_round + 1 + skips)

    @property
    def next_kind(self) -> RoundKind | None:
        """Return what the next round is for; None when everything is published."""
        if not self.counted:
            return "count"
        if self.trained < self.rules.rounds.total:
            return "count" if self.last_count is not None and self.last_count.again else "train"
        return None if self.evaluated else "evaluate"

    def expected(self, kind: RoundKind) -> frozenset[ClientId]:
        """Return who has to be in a round, and nobody else; empty where that is not fixed."""
        found = self.last_count
        return found.clients if kind == "train" and found is not None else frozenset()

    @property
    def base_state(self) -> bytes | None:
        """Return the digest that updates must name as their model's, where it is known here."""
        return self.known[1] if self.known and self.known[0] == self.rules.epoch else None

    def rows_of(self, kind: RoundKind) -> StatedRows:
        """Return the item rows that a round's vectors cover."""
        if kind == "count" or self.rows is None:
            return StatedRows.whole(self.rules.n_items)
        return self.rows

    def covers(self, kind: RoundKind, rows: StatedRows) -> bool:
        """Tell whether a header names the rows of a round, as far as that is known here.

        Members name the list under their epoch's key: after a change of epoch the coordinator
        knows their number alone, until the next statement.
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
        known: tuple[int, bytes] | None,
        rows: StatedRows | None,
    ) -> State:
        """Return the state after `number` was published.

        Args:
            known: what is known of the model that it led to.
            rows: that vectors cover from now on; None where clients have yet to say.
        """
        return replace(
            self,
            current=None,
            published=number,
            abandoned_in_row=0,
            gave_up="",
            unanswered=frozenset(),
            retry_at=0.0,
            known=known,
            rows=rows,
            counted=self.counted or kind == "count",
            trained=self.trained + (kind == "train"),
            evaluated=self.evaluated or kind == "evaluate",
        )
