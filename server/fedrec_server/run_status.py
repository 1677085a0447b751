"""The status of a run for operators: for `fedrec status`, `watch` and the page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedrec.plan.cautions import measured_caution
from fedrec.wire.v1 import admin_pb2
from fedrec_server.engine import Engine
from fedrec_server.peers.member_states import (
    labels_of,
    member_states,
    missing,
    unplaced,
    waits_for,
)
from fedrec_server.rounds.backoff import is_stalled
from fedrec_server.run.live_run import LiveRun

MOST_MEMBERS = 1_000
"""Limit of entries, so that a status fits one message."""

Message = Any
"""Generated messages are untyped."""


def status_of(engine: Engine, *, last_event: int) -> Message:
    """Return a run's status.

    Args:
        last_event: number of the journal's newest entry.
    """
    run = engine.run
    state, roster, plan = run.state, run.federation.keys.roster, run.federation.plan
    following = engine.rotation.next
    planned, revealer = state.rules.rounds.published, state.rules.revealer
    members = member_states(run, engine.counted)
    return admin_pb2.Status(
        federation=plan.federation.name,
        run=run.name,
        protection=plan.protection.name,
        published_round=state.published,
        rounds_published=state.rounds_published,
        rounds_planned=planned,
        rounds_abandoned=state.abandoned,
        clients_seen=len(run.presence.seen & state.roster),
        clients_in_roster=len(state.roster),
        finished=state.ending is not None,
        finish_reason="" if state.ending is None else state.ending.reason,
        epoch=state.rules.epoch,
        next_epoch=0 if following is None else following.keys.roster.epoch,
        waits_for=waits_for(state, roster, run.presence, engine.applications.labels),
        authority_heard=run.presence.last_heard(revealer),
        last_event=last_event,
        quality=_quality(engine),
        unplaced=unplaced(roster),
        awaited=labels_of(missing(state, run.presence), roster),
        stalled=is_stalled(state) and state.ending is None,
        epsilon=state.epsilon,
        protocol=plan.evaluation.protocol,
        caution=measured_caution(plan, engine.quality.quality.untrained),
        disk_full=run.disk_full,
        clients_here=sum(one.is_here for one in members),
        members=[admin_pb2.Member(**asdict(one)) for one in members[:MOST_MEMBERS]],
        now=run.clock.now(),
        stop_asked=state.stop_asked,
        current=_current(run),
    )


def _current(run: LiveRun) -> Message | None:
    """Return the round in progress as a message, or None between rounds."""
    round_ = run.state.current
    if round_ is None:
        return None
    left = max(0.0, round_.deadline_at - run.clock.now())
    return admin_pb2.RoundStatus(
        round=round_.number,
        kind=round_.kind,
        phase=round_.phase,
        expected=len(round_.asked),
        arrived=len(round_.accepted),
        bytes_received=sum(header.length for header in round_.accepted.values()),
        seconds_left=left if round_.phase == "collecting" else 0.0,
    )


def _quality(engine: Engine) -> Message | None:
    """Return the figures of the last measured round as a message, or None before the first."""
    found = engine.quality.quality
    if not found.round:
        return None
    at = engine.run.federation.plan.evaluation.at
    return admin_pb2.Quality(round=found.round, at=at, **found.figures())
