"""What honest clients, lying ones and the key authority say in a made-up history."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from world.machine import (
    AUTHORITY,
    STEP_OF,
    World,
    blob,
    budget_for,
    client,
    header,
    mistaken,
    report,
    rules,
    statement,
    stepwise,
    terms_of,
)

from fedrec.errors import FedrecError
from fedrec.identity.cells import Cell, Partition
from fedrec.ids import ClientId, RoundId
from fedrec.plan.schema import RoundSettings
from fedrec.wire.messages import StepMessage
from fedrec_server.rounds.events import (
    EpochInstalled,
    Event,
    Failed,
    Polled,
    ReportReceived,
    Restarted,
    Resumed,
    StatementReceived,
    StepClosed,
    StepHeard,
    StopRequested,
    Summed,
    Tick,
    Uploaded,
)
from fedrec_server.rounds.state import LastCount, Round, Rules, State
from fedrec_server.rounds.steps import arrived, invited

DEADLINE_SECONDS = 30.0


def random_history(seed: int) -> tuple[Rules, frozenset[ClientId]]:
    """Return the rules and the members of one history."""
    choose = random.Random(f"rules {seed}")
    kind = choose.choice(["readable", "shared key", "authority", "masks"])
    has_cells = kind in ("authority", "masks") and choose.random() < 0.8
    n_clients = choose.randint(6, 12)
    rounds = RoundSettings(
        total=choose.randint(2, 12),
        minimum_clients=choose.randint(1, 4),
        minimum_summands=choose.randint(1, 4),
        clients_per_round=0 if has_cells else choose.choice([0, 0, 4]),
        cells_per_round=choose.choice([0, 0, 1]) if has_cells else 0,
        over_provision=choose.choice([1.0, 1.5]),
        deadline_seconds=DEADLINE_SECONDS,
        report_seconds=DEADLINE_SECONDS,
        mask_step_seconds=DEADLINE_SECONDS,
    )
    noisy = choose.random() < 0.3
    found = replace(
        rules(needs_reveal=kind in ("shared key", "authority")),
        seed=seed,
        rounds=rounds,
        revealer=client(AUTHORITY) if kind == "authority" else None,
        exact=choose.random() < 0.3,
        mechanism=budget_for(choose.randint(2, 12)) if noisy else None,
        charges_updates=noisy and kind == "readable",
    )
    if kind == "masks":
        found = stepwise(found)
    members = [client(number) for number in range(n_clients)]
    if has_cells:
        found = replace(found, partition=_cells(members, choose))
    return found, frozenset(members)


def _cells(members: list[ClientId], choose: random.Random) -> Partition:
    """Return cells of three or more, with a guest here and there."""
    size = 3
    parts = [members[start::2] for start in range(2)] if len(members) >= 2 * size else [members]
    cells = []
    for number, part in enumerate(parts, start=1):
        n_guests = choose.randint(0, len(part) - size)
        core, guests = part[n_guests:], part[:n_guests]
        cells.append(Cell(id=number, since=1, core=tuple(core), guests=tuple(guests)))
    return Partition(cell_size=size, cells=tuple(cells))


def random_epoch(state: State, choose: random.Random) -> tuple[Rules, frozenset[ClientId]]:
    """Return the next epoch: with a new member, without an old one, or with the same."""
    rules, members = replace(state.rules, epoch=state.rules.epoch + 1), set(state.roster)
    if not rules.partition.cell_size:
        if choose.random() < 0.5:
            members.add(client(100 + rules.epoch))
        elif len(members) > 6:
            members.remove(choose.choice(sorted(members)))
    elif choose.random() < 0.5:
        cells = [
            replace(cell, core=(*cell.core, *cell.guests), guests=())
            for cell in rules.partition.cells
        ]
        rules = replace(rules, partition=replace(rules.partition, cells=tuple(cells)))
    return rules, frozenset(members)


def sealed(state: State) -> str:
    """Return what stands for the opened sum of the round in progress: a function of its list."""
    return "opened " + state.current.manifest_digest(state.rules.run).hex()


@dataclass
class Traffic:
    """Chooses what is said next.

    Attributes:
        trouble: how often a client is away, repeats, lies or says something about another round.
    """

    world: World
    random: random.Random
    trouble: float

    def next(self) -> Event:
        """Return what a client, the authority or an operator says, or time that passes."""
        state, choose = self.world.state, self.random
        troubled = choose.random() < self.trouble
        if troubled and choose.random() < 0.1:
            return self._operator()
        if state.reporting is not None and choose.random() < 0.7:
            return self._report(troubled)
        round_ = state.current
        if round_ is None or choose.random() < 0.2:
            return self.time(troubled)
        someone = self._someone(round_)
        if state.rules.steps.are_several and round_.phase in STEP_OF:
            return self._mask_step(round_, someone, troubled)
        if round_.phase == "collecting":
            if choose.random() < 0.15:
                live = state.roster if state.rules.partition.cell_size else frozenset()
                return Polled(now=self.world.now, client_id=someone, live=live)
            return self._upload(round_, someone, troubled)
        if round_.phase == "revealing":
            return self._word(someone, troubled)
        return self.time(troubled)

    def time(self, troubled: bool) -> Tick:
        """Let time pass, with every client there, or in trouble with some."""
        state, choose = self.world.state, self.random
        self.world.now += choose.choice(
            [0.0, 1.0, 2 * DEADLINE_SECONDS] if troubled else [0.1, 5.0]
        )
        share = choose.random() if troubled else 1.0
        there = [*sorted(state.roster), client(AUTHORITY)]
        live = frozenset(one for one in there if choose.random() <= share)
        return Tick(now=self.world.now, live=live)

    def _someone(self, round_: Round) -> ClientId:
        """Return mostly one that has something to say, else any client."""
        state = self.world.state
        here: frozenset[ClientId] = frozenset(round_.accepted)
        asked = round_.asked
        if state.rules.steps.are_several and round_.phase in STEP_OF:
            here, asked = arrived(state.rules, round_), invited(state.rules, round_)
        waiting = sorted(asked - here)
        all_clients = sorted(state.roster)
        return self.random.choice(
            waiting if waiting and self.random.random() < 0.8 else all_clients
        )

    def _upload(self, round_: Round, someone: ClientId, troubled: bool) -> Event:
        choose, terms = self.random, terms_of(self.world.state)
        number, content = round_.number, f"update {someone} {round_.number}"
        if troubled:
            number = RoundId(number + choose.choice([-1, 0, 1]))
            content = choose.choice([content, "another"])
            mistaken(terms, round_.base_round, choose)
        found = header(number, someone, content, **terms)
        return Uploaded(now=self.world.now, header=replace(found, epoch=round_.epoch))

    def _mask_step(self, round_: Round, someone: ClientId, troubled: bool) -> Event:
        choose, step = self.random, STEP_OF[round_.phase]
        if round_.phase == "collecting" and choose.random() < 0.1:
            state = self.world.state
            return Polled(now=self.world.now, client_id=someone, live=state.roster)
        number = RoundId(round_.number + (choose.choice([-1, 0, 1]) if troubled else 0))
        if troubled:
            step = choose.choice(sorted(STEP_OF.values()))
        if step == "vector":
            return self._upload(round_, someone, troubled)
        content = choose.choice(["honest", "other"]) if troubled else "honest"
        message = StepMessage(
            federation="movies",
            run=self.world.state.rules.run,
            round=number,
            epoch=round_.epoch,
            client_id=someone,
            step=step,
            body=content.encode(),
        )
        return StepHeard(now=self.world.now, message=message)

    def _word(self, someone: ClientId, troubled: bool) -> Event:
        state, choose = self.world.state, self.random
        author = someone if troubled and choose.random() < 0.3 else client(AUTHORITY)
        refused = "too few" if troubled and choose.random() < 0.2 else ""
        content = sealed(state)
        text = replace(statement(state, author, content, refused=refused), epoch=state.rules.epoch)
        found = None if refused else blob(content)
        if troubled and choose.random() < 0.2:
            found = blob("something else")
        return StatementReceived(now=self.world.now, statement=text, blob=found)

    def _report(self, troubled: bool) -> Event:
        state, choose = self.world.state, self.random
        content = choose.choice(["honest", "lie", "other lie"]) if troubled else "honest"
        text = report(state, choose.choice(sorted(state.roster)), content)
        if troubled and choose.random() < 0.2:
            text = replace(text, round=RoundId(text.round + choose.choice([-1, 1])))
        return ReportReceived(now=self.world.now, report=text)

    def _operator(self) -> Event:
        now, choose, state = self.world.now, self.random, self.world.state
        if state.ending is not None or state.stop_asked:
            return Resumed(now=now)
        if choose.random() < 0.3:
            return StopRequested(now=now, at_once=choose.random() < 0.5)
        rules, roster = random_epoch(state, choose)
        return EpochInstalled(now=now, rules=rules, roster=roster)


class Chaos:
    """A made-up run without a store, whose coordinator does everything at any time.

    Args:
        seed: all that happens follows from it.
    """

    def __init__(self, seed: int) -> None:
        rules, roster = random_history(seed)
        self.world = World(State(rules=rules, roster=roster))
        self._random = random.Random(seed)
        # Some seeds are calm, so that long runs are seen to their end also.
        self._traffic = Traffic(self.world, self._random, self._random.choice([0.0, 0.05, 0.3]))

    def act(self) -> None:
        """Do one random thing; a refusal must leave the state as it was."""
        before = self.world.state
        try:
            self.world.apply(self._event())
        except FedrecError:
            assert self.world.state is before

    def _event(self) -> Event:
        choose, now, state = self._random, self.world.now, self.world.state
        round_ = state.current
        if choose.random() < 0.2 * self._traffic.trouble:
            number = RoundId(1) if round_ is None else round_.number
            rare: list[Event] = [
                Restarted(now=now),
                Failed(now=now, round=number, reason="a stored update is damaged"),
                Tick(now=now - 3600, live=state.roster),
            ]
            return choose.choice(rare)
        if round_ is not None and round_.phase == "summing":
            return Summed(now=now, round=round_.number, total=blob("sum"))
        is_step = state.rules.steps.are_several and round_ is not None and round_.phase in STEP_OF
        if is_step and choose.random() < 0.15:
            return StepClosed(now=now, round=round_.number, phase=round_.phase)
        return self._traffic.next()


def volatile_free(state: State) -> State:
    """Return what of a state is durable: offers to late joiners and extended times are not."""
    state = replace(
        state,
        abandonments=replace(state.abandonments, unanswered=frozenset(), retry_at=0.0),
        silences={},
    )
    if state.last_count is not None:
        state = replace(state, last_count=LastCount(clients=state.last_count.clients))
    if state.reporting is not None:
        state = replace(state, reporting=replace(state.reporting, until=0.0))
    if state.current is None:
        return state
    round_ = state.current
    kept = replace(round_, asked=frozenset(round_.accepted), deadline_at=0.0)
    return replace(state, current=kept)
