"""Random events of honest, silent, late, repeating and lying clients."""

from __future__ import annotations

import random
from dataclasses import replace

from world.machine import (
    AUTHORITY,
    RUN,
    STEP_OF,
    World,
    blob,
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
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import StepMessage
from fedrec_server.rounds.events import (
    Event,
    Failed,
    Polled,
    ReportReceived,
    Restarted,
    StatementReceived,
    StepClosed,
    StepHeard,
    StopRequested,
    Summed,
    Tick,
    Uploaded,
)
from fedrec_server.rounds.state import LastCount, Round, Rules, State


class Chaos:
    """Random events of honest, silent, late, repeating and lying clients."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.clients = sorted(world.state.roster)
        # Some seeds are calm, so that long runs are seen to their end also.
        self.trouble = self.random.choice([0.0, 0.05, 0.3])

    def act(self) -> None:
        """Do one random thing; a refusal must leave the state as it was."""
        before = self.world.state
        try:
            self.world.apply(self._event())
        except FedrecError:
            assert self.world.state is before

    def _event(self) -> Event:
        choose, now = self.random, self.world.now
        round_ = self.world.state.current
        troubled = choose.random() < self.trouble
        if troubled and choose.random() < 0.2:
            return self._rare()
        if self.world.state.reporting is not None and choose.random() < 0.8:
            content = choose.choice(["honest", "lie", "other lie"]) if troubled else "honest"
            text = report(self.world.state, choose.choice(self.clients), content)
            if troubled and choose.random() < 0.2:
                text = replace(text, round=RoundId(text.round + choose.choice([-1, 1])))
            return ReportReceived(now=now, report=text)
        if round_ is None or choose.random() < 0.2:
            self.world.now += choose.choice([0.0, 1.0, 40.0] if troubled else [0.0, 0.1])
            share = choose.random() if troubled else 1.0
            revealer = self.world.state.rules.revealer
            there = [*self.clients, *([] if revealer is None else [revealer])]
            live = frozenset(c for c in there if choose.random() <= share)
            return Tick(now=self.world.now, live=live)
        someone = choose.choice(self.clients)
        if self.world.state.rules.steps.are_several and round_.phase in STEP_OF:
            return self._mask_step(round_, someone, troubled)
        if round_.phase == "collecting":
            if choose.random() < 0.2:
                return Polled(now=now, client_id=someone)
            number = round_.number + (choose.choice([-1, 0, 1]) if troubled else 0)
            content = choose.choice(["update", "other"]) if troubled else "update"
            terms = terms_of(self.world.state)
            if troubled:
                mistaken(terms, round_.base_round, choose)
            found = header(number, someone, content, **terms)
            return Uploaded(now=now, header=found)
        if round_.phase == "summing":
            return Summed(now=now, round=round_.number, total=blob("sum"))
        return self._word(someone, troubled)

    def _mask_step(self, round_: Round, someone: ClientId, troubled: bool) -> Event:
        choose, now = self.random, self.world.now
        if round_.phase == "collecting" and choose.random() < 0.2:
            return Polled(now=now, client_id=someone)
        if choose.random() < 0.15:
            left_out = frozenset({someone} if troubled and round_.phase == "collecting" else ())
            return StepClosed(now=now, round=round_.number, phase=round_.phase, left_out=left_out)
        number = RoundId(round_.number + (choose.choice([-1, 0, 1]) if troubled else 0))
        step = STEP_OF[round_.phase]
        if troubled:
            step = choose.choice(sorted(STEP_OF.values()))
        content = choose.choice(["honest", "other"]) if troubled else "honest"
        if step == "vector":
            terms = terms_of(self.world.state)
            return Uploaded(now=now, header=header(number, someone, content, **terms))
        message = StepMessage(
            federation="movies",
            run=RUN,
            round=number,
            epoch=1,
            client_id=someone,
            step=step,
            body=content.encode(),
        )
        return StepHeard(now=now, message=message)

    def _word(self, someone: ClientId, troubled: bool) -> Event:
        state, choose = self.world.state, self.random
        author = someone if troubled and choose.random() < 0.5 else client(AUTHORITY)
        refused = "too few" if troubled and choose.random() < 0.3 else ""
        content = choose.choice(["honest", "other"]) if troubled else "honest"
        text = statement(state, author, refused=refused)
        sealed = None if refused else blob(content)
        return StatementReceived(now=self.world.now, statement=text, blob=sealed)

    def _rare(self) -> Event:
        now, round_ = self.world.now, self.world.state.current
        number = RoundId(1) if round_ is None else round_.number
        rare: list[Event] = [
            Restarted(now=now),
            Failed(now=now, round=number, reason="a stored update is damaged"),
            Tick(now=now - 3600, live=self.world.state.roster),
        ]
        if self.random.random() < 0.1:
            rare.append(StopRequested(now=now, at_once=self.random.random() < 0.5))
        return self.random.choice(rare)


def random_rules(seed: int) -> tuple[Rules, int]:
    """Return rules and a number of clients that fit together."""
    choose = random.Random(seed)
    found = rules(
        needs_reveal=choose.random() < 0.7,
        total=choose.randint(1, 4),
        minimum_clients=choose.randint(1, 4),
        minimum_summands=choose.randint(1, 5),
        clients_per_round=choose.choice([0, 0, 3, 5]),
        over_provision=choose.choice([1.0, 1.5]),
        recompute_limit=choose.choice([3, 6, 64]),
    )
    n_clients = choose.randint(5, 12)
    masked = not found.needs_reveal and choose.random() < 0.6
    alone = found.needs_reveal and choose.random() < 0.4
    revealer = client(AUTHORITY) if alone else None
    exact = choose.random() < 0.4
    found = replace(found, revealer=revealer, exact=exact)
    return stepwise(found) if masked else found, n_clients


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
