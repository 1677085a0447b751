"""Prometheus metrics of a coordinator.

Most of them follow the engine's commits. Others, such as the number of present clients, are looked
up once a second. Labels name a phase or how something ended, never a client.
"""

from __future__ import annotations

from pathlib import Path

from fedrec.errors import ERRORS, InternalError
from fedrec.monitoring import BYTES, SECONDS, Numbers
from fedrec.settings.schema import CoordinatorSettings
from fedrec_server.engine import Engine
from fedrec_server.peers.member_states import missing
from fedrec_server.rounds.backoff import is_stalled
from fedrec_server.rounds.changes import (
    Change,
    CollectingEnded,
    RoundAbandoned,
    RoundPublished,
    StepEnded,
    UpdateCounted,
)
from fedrec_server.rounds.state import PHASES, State

LOOKED_SECONDS = 1.0
UPLOAD = "SubmitUpdate"


class CoordinatorMetrics:
    """Counts what happens in one engine from now on.

    Args:
        engine: the engine to listen to.
        settings: its state folder, and the space to keep free.
        certificate_ends: expiry of the coordinator's certificate, in unix seconds.
    """

    def __init__(
        self, engine: Engine, settings: CoordinatorSettings, *, certificate_ends: float
    ) -> None:
        self._engine = engine
        numbers = Numbers("coordinator")
        self.registry = numbers.registry
        rounds = numbers.counter("fedrec_rounds_total", "Rounds by how they ended.", ["outcome"])
        self._published, self._abandoned = map(rounds.labels, ("published", "abandoned"))
        lasted = numbers.histogram(
            "fedrec_round_duration_seconds", "Duration of a round's phases.", SECONDS, ["phase"]
        )
        self._lasted = {phase: lasted.labels(phase) for phase in PHASES}
        updates = numbers.counter(
            "fedrec_updates_total", "Updates of clients by outcome.", ["outcome"]
        )
        self._updates = {
            outcome: updates.labels(outcome) for outcome in ("counted", "left_out", "refused")
        }
        self._size = numbers.histogram(
            "fedrec_update_size_bytes", "Sizes of counted updates.", BYTES
        )
        self._out = numbers.counter(
            "fedrec_published_bytes_total", "Bytes of published sums, each counted once."
        )
        refused = numbers.counter(
            "fedrec_calls_refused_total", "Calls that were answered with an error.", ["code"]
        )
        self._refused = {code: refused.labels(code) for code in ERRORS}
        self._gauges(numbers, certificate_ends)
        numbers.disk_free(Path(settings.state))
        numbers.gauge(
            "fedrec_disk_reserve_bytes", "Free space below which uploads are refused."
        ).set(settings.reserve_bytes)
        self._phase: str | None = None
        self._since = self._looked = engine.run.clock.now()
        self._charged = (-1, 0)
        self._look()
        engine.run.listeners.append(self.on_commit)

    def _gauges(self, numbers: Numbers, certificate_ends: float) -> None:
        gauge = numbers.gauge
        self._done = gauge("fedrec_run_published_rounds", "Published rounds of the whole run.")
        self._planned = gauge("fedrec_run_planned_rounds", "Rounds of the whole run in total.")
        ratio = gauge("fedrec_hit_ratio", "HR of the last measured round.", ["split"])
        ndcg = gauge("fedrec_ndcg", "NDCG of the last measured round.", ["split"])
        self._rates = [(split, ratio, ndcg) for split in ("validation", "test")]
        self._loss = gauge("fedrec_training_loss", "Mean loss of a user in the last round.", [])
        self._awaited = gauge("fedrec_awaited_clients", "Clients that a round waits for.")
        self._here = gauge("fedrec_clients_connected", "Clients that wait, or called recently.")
        self._listed = gauge("fedrec_roster_clients", "Clients in the roster.")
        self._stalled = gauge("fedrec_run_stalled", "1 if rounds are abandoned in a row.")
        self._finished = gauge("fedrec_run_finished", "1 if no round follows.")
        self._failed = gauge("fedrec_run_failed", "1 if the run ended with a failure.")
        self._revealing = gauge("fedrec_rounds_revealing", "1 if a sum waits to be opened.")
        self._epoch = gauge("fedrec_key_epoch", "The current key epoch.")
        self._epsilon = gauge("fedrec_privacy_epsilon", "Epsilon of all noisy sums, or 0.")
        self._noisy = gauge("fedrec_privacy_sums", "Number of noisy sums released.")
        by = self._engine.run.state.rules.mechanism
        # The budget limits releases, not the sums that are parts of one.
        most = None if by is None or by.in_parts else by.most_sums
        gauge(
            "fedrec_privacy_allowed_sums", "Noisy sums that the budget allows, or 0 for any number."
        ).set(most or 0)
        self._heard = gauge(
            "fedrec_authority_heard_timestamp_seconds",
            "Last call of the key authority, or the start if it has not called since.",
        )
        self._started = self._engine.run.clock.now()
        gauge("fedrec_certificate_expiry_timestamp_seconds", "Expiry of the certificate.").set(
            certificate_ends
        )

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Count committed changes."""
        for change in changes:
            match change:
                case UpdateCounted(header=header):
                    self._updates["counted"].inc()
                    self._size.observe(header.length)
                case CollectingEnded() | StepEnded():
                    self._updates["left_out"].inc(len(change.left_out))
                case RoundPublished():
                    self._published.inc()
                    self._out.inc(change.blob.length)
                case RoundAbandoned():
                    self._abandoned.inc()
        if changes:
            self._follow(before)

    def refused(self, method: str, error: Exception) -> None:
        """Count a call that was answered with an error."""
        code = getattr(error, "code", "")
        self._refused[code if code in self._refused else InternalError.code].inc()
        if method.endswith(UPLOAD):
            self._updates["refused"].inc()

    def tick(self) -> None:
        """Look up what has no event, at most once a second. Called as time passes."""
        now = self._engine.run.clock.now()
        if abs(now - self._looked) >= LOOKED_SECONDS:
            self._looked = now
            self._look()

    def _follow(self, before: State) -> None:
        """Record the duration of a phase that ended, if any."""
        present = self._engine.run.state.current
        was = before.current
        number = None if was is None else was.number
        same = present is not None and present.number == number
        if present is not None and same and present.phase == self._phase:
            return
        now = self._engine.run.clock.now()
        if self._phase is not None:
            self._lasted[self._phase].observe(max(0.0, now - self._since))
        self._phase = None if present is None else present.phase
        self._since = now

    def _look(self) -> None:
        engine = self._engine
        state, presence, ending = engine.run.state, engine.run.presence, engine.run.state.ending
        self._done.set(state.rounds_published)
        self._planned.set(state.rules.rounds.published)
        self._listed.set(len(state.roster))
        self._here.set(len(presence.live() & state.roster))
        self._awaited.set(0 if ending else len(missing(state, presence)))
        self._stalled.set(is_stalled(state) and ending is None)
        self._finished.set(ending is not None)
        self._failed.set(ending is not None and ending.failed)
        round_ = state.current
        self._revealing.set(round_ is not None and round_.phase == "revealing")
        self._epoch.set(state.rules.epoch)
        if state.rules.revealer is not None:
            self._heard.set(presence.last_heard(state.rules.revealer) or self._started)
        else:
            self._heard.set(engine.run.clock.now())
        self._measured()
        if (state.charged, state.releases) != self._charged:
            self._charged = (state.charged, state.releases)
            self._epsilon.set(state.epsilon or 0.0)
            self._noisy.set(state.charged)

    def _measured(self) -> None:
        quality = self._engine.quality.quality
        for split, ratio, ndcg in self._rates:
            rates = quality.validation if split == "validation" else quality.test
            if rates is not None:
                ratio.labels(split).set(rates.hr)
                ndcg.labels(split).set(rates.ndcg)
        if quality.loss is not None:
            self._loss.set(quality.loss)
