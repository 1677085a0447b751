"""A run under events of made-up parties, and what must hold after each of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blake3 import blake3

from fedrec.identity.cells import Partition
from fedrec.ids import ClientId, RoundId
from fedrec.plan.schema import RoundSettings
from fedrec.privacy.mechanism import Mechanism
from fedrec.protection import Masks
from fedrec.protection.round_protocol import ONE_STEP
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import Report, RevealStatement, RoundKind, UploadHeader
from fedrec_server.rounds.changes import (
    CellsPaused,
    Change,
    CollectingEnded,
    EpochBegan,
    ReportKept,
    RoundAbandoned,
    RoundMeasured,
    RoundOpened,
    RoundPublished,
    RunFinished,
    RunResumed,
    StepEnded,
    SumKept,
    UpdateCounted,
    UpdatesRefused,
)
from fedrec_server.rounds.events import (
    Event,
    ReportReceived,
    StatementReceived,
    Summed,
    Tick,
    Uploaded,
)
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import Round, Rules, State

RUN = "run"
AUTHORITY = 1000
"""The number of the client that is no member and opens sums, where there is one."""


def client(number: int) -> ClientId:
    """Return the id of a made-up client."""
    return ClientId(hashlib.sha256(str(number).encode()).hexdigest())


def rules(*, needs_reveal: bool = True, exact: bool = False, **rounds: float) -> Rules:
    """Return rules with the given round settings, and the weakest of all others."""
    return Rules(
        run=RUN,
        epoch=1,
        seed=7,
        needs_reveal=needs_reveal,
        rounds=RoundSettings(**rounds),
        fewest_revealed=1,
        most_summands=None,
        hides_updates=False,
        steps=ONE_STEP,
        vector_seconds=0.0,
        mechanism=None,
        charges_updates=False,
        exact=exact,
        revealer=None,
        n_items=0,
        entries=None,
        partition=Partition(),
        fewest_clients=0,
        fewest_cells=1,
    )


def budget_for(n_sums: int, *, in_parts: bool = False) -> Mechanism:
    """Return noise whose budget allows this many sums."""
    found = Mechanism(
        kind="gaussian", bound=1, share=10, clients=3, noisy=3, rounds_per_user=1000,
        epsilon=1.0, delta=1e-5, divisor=1.0, in_parts=in_parts,
    )  # fmt: skip
    return replace(found, epsilon=found.epsilon_after(n_sums))


def header(
    round_id: int,
    client_id: ClientId,
    content: str = "update",
    *,
    kind: RoundKind = "count",
    base_round: int = 0,
    base_state: bytes = bytes(32),
    key_list: bytes = b"",
) -> UploadHeader:
    """Return an update's header, of a first round; equal contents give equal digests."""
    return UploadHeader(
        protocol_version="2.0",
        federation="movies",
        run=RUN,
        round=RoundId(round_id),
        kind=kind,
        base_round=RoundId(base_round),
        base_state=base_state,
        key_list=key_list,
        nonce=b"",
        epoch=1,
        client_id=client_id,
        catalogue_fingerprint="c",
        plan_fingerprint="p",
        length=10,
        digest=blake3(content.encode()).digest(),
        signature=bytes(64),
    )


def terms_of(state: State) -> dict[str, Any]:
    """Return what a header says about the round in progress, as its contributors were told."""
    round_ = state.current
    assert round_ is not None
    return {
        "kind": round_.kind,
        "base_round": round_.base_round,
        "base_state": state.base_state or bytes(32),
        "key_list": bytes(32) if state.rules.steps.are_several else b"",
    }


def mistaken(terms: dict[str, Any], base_round: int, choose: random.Random) -> None:
    """Take one of a header's terms, and make it wrong every other time."""
    wrong = {
        "kind": "evaluate",
        "base_round": base_round + 1,
        "base_state": b"x" * 32,
        "key_list": b"x" * 32,
    }
    name = choose.choice(sorted(wrong))
    terms[name] = choose.choice([terms[name], wrong[name]])


def statement(
    state: State, client_id: ClientId, content: str = "honest", *, refused: str = ""
) -> RevealStatement:
    """Return a statement on the round in progress."""
    tag = blake3(content.encode()).digest()
    return RevealStatement(
        federation="movies",
        run=RUN,
        round=state.current.number,
        epoch=1,
        client_id=client_id,
        manifest_digest=state.current.manifest_digest(RUN),
        state_tag=tag,
        published_digest=tag,
        metrics=bytes(8),
        refused=refused,
        signature=bytes(64),
        kind=state.current.kind,
        sequence=state.current.number,
    )


def report(state: State, client_id: ClientId, content: str = "honest") -> Report:
    """Return a client's word on the published round."""
    return Report(
        federation="movies",
        run=RUN,
        round=state.published,
        epoch=state.rules.epoch,
        client_id=client_id,
        state_tag=blake3(content.encode()).digest(),
        metrics=bytes(8),
        signature=bytes(64),
    )


def blob(content: str) -> Blob:
    """Return the announcement of made-up bytes."""
    return Blob.of(content.encode())


STEP_OF = {step.phase: step.name for step in Masks.steps.all}
"""The step whose messages a phase collects."""


def stepwise(rules: Rules) -> Rules:
    """Return rules of rounds that take the steps of masks."""
    return replace(rules, hides_updates=True, steps=Masks.steps)


@dataclass
class World:
    """Applies events and checks the invariants of `docs` after each.

    Attributes:
        commit: sees the changes of every step before the state moves on.
        checks: further invariants; each sees every change that is committed.
    """

    state: State
    now: float = 1000.0
    commit: Callable[[Sequence[Change]], None] = lambda changes: None
    counted: dict[int, set[ClientId]] = field(default_factory=dict)
    published: list[RoundPublished] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    divisors: set[ClientId] = field(default_factory=set)
    finished: list[RunFinished] = field(default_factory=list)
    reports: dict[ClientId, Report] = field(default_factory=dict)
    awaiting: bool = False
    headers: dict[int, dict[ClientId, UploadHeader]] = field(default_factory=dict)
    checks: list[Callable[[Change], None]] = field(default_factory=list)

    @classmethod
    def new(cls, rules: Rules, n_clients: int) -> World:
        """Return a run before its first round."""
        return cls(State(rules=rules, roster=frozenset(client(i) for i in range(n_clients))))

    def apply(self, event: Event) -> tuple[Change, ...]:
        """Step, commit, move on and check."""
        before = self.state
        state, changes = step(before, event)
        assert step(before, event) == (state, changes), "step is not a function"
        self.commit(changes)
        self.settle(state, changes)
        return changes

    def settle(self, state: State, changes: Sequence[Change]) -> None:
        """Move on to what is committed, and check it."""
        before, self.state = self.state, state
        for change in changes:
            self._check(change, state.current or before.current)
            for check in self.checks:
                check(change)

    def tick(self, *numbers: int, seconds: float = 0.0) -> tuple[Change, ...]:
        """Let time pass while these clients are live."""
        self.now += seconds
        return self.apply(Tick(now=self.now, live=frozenset(client(n) for n in numbers)))

    def upload(self, number: int, content: str = "update", **changes: Any) -> tuple[Change, ...]:
        """Upload to the round in progress; `changes` are what the client says otherwise."""
        round_ = self.state.current
        terms = terms_of(self.state) | changes
        found = header(round_.number, client(number), content, **terms)
        return self.apply(Uploaded(now=self.now, header=found))

    def sum(self) -> tuple[Change, ...]:
        """Make the sum of the closed round."""
        event = Summed(now=self.now, round=self.state.current.number, total=blob("sum"))
        return self.apply(event)

    def speak(self, content: str = "honest", *, refused: str = "") -> tuple[Change, ...]:
        """Answer as the key authority."""
        text = statement(self.state, client(AUTHORITY), content, refused=refused)
        sealed = None if refused else blob(content)
        return self.apply(StatementReceived(now=self.now, statement=text, blob=sealed))

    def report(self, number: int, content: str = "honest") -> tuple[Change, ...]:
        """Say as a client what is in the published sum."""
        text = report(self.state, client(number), content)
        return self.apply(ReportReceived(now=self.now, report=text))

    def _check(self, change: Change, round_: Round | None) -> None:
        match change:
            case RoundOpened(round=number):
                assert not self.opened or number > self.opened[-1], "round numbers are reused"
                assert set(self.opened) == self.ended, "two rounds at once"
                assert not self.awaiting, "opened before clients said what was in the sum"
                assert change.base_round == (self.published[-1].round if self.published else 0)
                self.opened.append(number)
            case UpdateCounted(header=found):
                counted = self.counted.setdefault(found.round, set())
                assert found.client_id not in counted, "counted twice"
                assert found.round not in self.ended
                assert (found.kind, found.base_round) == (round_.kind, round_.base_round)
                assert bool(found.key_list) == self.state.rules.steps.are_several
                assert self.state.base_state in (None, found.base_state)
                counted.add(found.client_id)
                self.headers.setdefault(found.round, {})[found.client_id] = found
            case CollectingEnded(round=number):
                self.counted[number] -= change.left_out
                assert round_ is not None and set(round_.accepted) == self.counted[number]
                models = {one.base_state for one in round_.accepted.values()}
                assert len(models) == 1, "updates to different models are added"
            case (
                CellsPaused(round=number)
                | UpdatesRefused(round=number)
                | StepEnded(round=number, step="vector")
            ):
                self.counted[number] -= change.left_out
            case SumKept(round=number) if self.state.rules.needs_reveal:
                assert len(self.counted[number]) >= self.state.rules.needed
                assert len(self.counted[number]) >= 3, "too small a sum would be revealed"
            case ReportKept(report=found):
                assert found.client_id in self.state.roster
                assert found.client_id not in self.reports
                self.reports[found.client_id] = found
            case EpochBegan():
                # Members report anew.
                self.reports = {}
            case RoundMeasured():
                self._check_measured(change)
            case RoundPublished(round=number):
                self._check_published(change)
                self.published.append(change)
                self.ended.add(number)
            case RoundAbandoned(round=number):
                assert number not in self.ended
                self.ended.add(number)
            case RunFinished():
                assert not self.finished
                self.finished.append(change)
            case RunResumed():
                self.finished.clear()

    def _check_published(self, change: RoundPublished) -> None:
        assert change.round not in self.ended
        assert change.counted == len(self.counted[change.round]) >= self.state.rules.needed
        if self.state.rules.exact:
            if change.kind == "count":
                self.divisors = self.counted[change.round]
            if change.kind == "train":
                assert self.counted[change.round] == self.divisors, "divided by others' holders"
        limit = self.state.rules.most_counted
        assert limit is None or change.counted <= limit
        self.awaiting = self.state.rules.shares_key
        assert (change.reports_until is not None) == self.awaiting
        alone = self.state.rules.revealer
        assert (change.statement is not None) == (alone is not None)
        if change.statement is not None:
            assert change.statement.client_id == alone
            assert not change.statement.refused
            assert change.statement.published_digest == change.blob.digest
            assert change.metrics == bytes(8)
        if self.awaiting:
            assert not change.metrics
            self.reports = {}

    def _check_measured(self, change: RoundMeasured) -> None:
        assert self.awaiting and change.round == self.published[-1].round
        self.awaiting = False
        text = [found.content() for found in self.reports.values()]
        alike = {content for content in text if text.count(content) > 1}
        if change.agreed is None:
            assert change.reason and not alike
        else:
            assert change.agreed.content() in alike and not change.reason

    def check_end(self) -> None:
        """Check what must hold for a run as a whole."""
        kinds = [change.kind for change in self.published]
        total = self.state.rules.rounds.total
        whole = ["count", *["train"] * total, "evaluate"]
        if self.state.rules.exact:
            kinds = [kind for n, kind in enumerate(kinds) if not n or kind != "count"]
        assert kinds == whole[: len(kinds)]
        assert self.state.published == (self.published[-1].round if self.published else 0)
        if self.finished and self.finished[0].reason == "all rounds are published":
            assert kinds == whole
        assert (self.state.ending is not None) == bool(self.finished)
