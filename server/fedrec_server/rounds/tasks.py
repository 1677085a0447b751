"""What a client is told to do: a pure reading of the state."""

from __future__ import annotations

from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import Finished, Reveal, StepTask, Task, Train, Wait
from fedrec_server.rounds.state import Round, Rules, State
from fedrec_server.rounds.steps import arrived, task_of


def task_for(state: State, client_id: ClientId, version: RoundId, now: float) -> Task | None:
    """Return what the client can do now; None when it has to wait.

    A client that is behind is only told so: it catches up first.

    Raises:
        RoundError: when the client's model is newer than the run.
    """
    if version > state.published:
        # One of the two went back; the client sees which, and waits.
        return _task(state, Wait(reason="the coordinator knows fewer rounds than this client"))
    if version < state.published:
        return _task(state, Wait(reason="catch up"))
    if state.ending is not None:
        return _task(state, Finished(reason=state.ending.reason, failed=state.ending.failed))
    if state.current is None:
        return None
    rules, round_ = state.rules, state.current
    task = task_of(rules, round_, client_id) or _in_round(rules, round_, client_id, now)
    return None if task is None else _task(state, task)


def _task(state: State, task: Wait | Train | StepTask | Reveal | Finished) -> Task:
    return Task(published_round=state.published, task=task, epoch=state.rules.epoch)


def _in_round(
    rules: Rules, round_: Round, client_id: ClientId, now: float
) -> Train | Reveal | None:
    if round_.phase == "collecting":
        if client_id not in round_.asked or client_id in arrived(rules, round_):
            return None
        return Train(
            round=round_.number,
            kind=round_.kind,
            base_round=round_.base_round,
            seconds_left=max(0.0, round_.deadline_at - now),
            epoch=round_.epoch,
        )
    if round_.phase != "revealing" or client_id != rules.revealer or round_.total is None:
        return None
    ordered = sorted(round_.accepted.values(), key=lambda header: header.client_id)
    return Reveal(
        round=round_.number,
        kind=round_.kind,
        base_round=round_.base_round,
        contributions=tuple(ordered),
        sum=round_.total,
        epoch=round_.epoch,
    )
