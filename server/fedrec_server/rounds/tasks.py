"""What a client is told to do: a pure reading of the state."""

from __future__ import annotations

from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import Finished, MaskTask, Reveal, Task, Train, Wait
from fedrec_server.rounds.mask_steps import task_of
from fedrec_server.rounds.state import Round, State

__all__ = ["task_for"]


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
    masked = task_of(state.current, client_id) if state.rules.masked else None
    task = masked or _in_round(state.current, client_id, state.rules.revealer, now)
    return None if task is None else _task(state, task)


def _task(state: State, task: Wait | Train | MaskTask | Reveal | Finished) -> Task:
    return Task(published_round=state.published, task=task, epoch=state.rules.epoch)


def _in_round(
    round_: Round, client_id: ClientId, revealer: ClientId | None, now: float
) -> Train | Reveal | None:
    if round_.phase == "collecting":
        answered = client_id in round_.accepted or client_id in round_.messages["keys"]
        if client_id not in round_.asked or answered:
            return None
        return Train(
            round=round_.number,
            kind=round_.kind,
            base_round=round_.base_round,
            seconds_left=max(0.0, round_.deadline_at - now),
            epoch=round_.epoch,
        )
    if round_.phase != "revealing" or client_id != revealer or round_.total is None:
        return None
    ordered = sorted(round_.accepted.values(), key=lambda header: header.client_id)
    return Reveal(
        round=round_.number,
        kind=round_.kind,
        base_round=round_.base_round,
        contributions=tuple(ordered),
        sum_length=round_.total.length,
        sum_digest=round_.total.digest,
        epoch=round_.epoch,
    )
