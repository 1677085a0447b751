"""The pull loop: ask for a task, do it, and ask again, through every interruption."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from fedrec.clock import Clock
from fedrec.errors import CoordinatorWentBack, NotInRoster, RevealRefused, RoundError, TaskRefused
from fedrec.follower.catching_up import CatchingUp
from fedrec.follower.follower_store import FollowerStore
from fedrec.follower.patient_link import Backoff
from fedrec.follower.shared_model import RoundContext
from fedrec.follower.stored_state import StoredState, epoch_went_back
from fedrec.ids import RoundId
from fedrec.wire.messages import (
    NOTHING,
    Finished,
    MakeSnapshot,
    Remembered,
    Reveal,
    StepTask,
    Task,
    Train,
    Wait,
)

Work = Wait | Train | StepTask | Reveal | MakeSnapshot | Finished
POLL_SECONDS = 30.0
BRISK_SECONDS = 0.5
"""After an answer without work that came faster than this, the loop pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochChanged:
    """The federation has newer keys than this session. The client must enrol again."""

    epoch: int


class RollbackDetection:
    """Detect a coordinator that was reset to an earlier state, and wait for it."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._membership = context.membership
        self._store = context.store
        self._journal = context.journal
        self._went_back: tuple[RoundId, RoundId] | None = None

    def remembered(self) -> Remembered:
        """Return the round to report to the coordinator with the next request."""
        if self._went_back is None:
            return NOTHING
        return replace(NOTHING, statement=self._store.state.statement)

    def agrees(self, task: Task) -> bool:
        """Return whether the coordinator knows all that it published. Otherwise, wait for it."""
        if task.published_round < self._store.state.version:
            return self._wait_for(self._store.state.version, task.published_round)
        self._went_back = None
        return True

    def _wait_for(self, known: RoundId, served: RoundId) -> bool:
        if self._went_back != (known, served):
            self._went_back = (known, served)
            error = CoordinatorWentBack(
                f"The coordinator went back from round {known} to {served}. This client waits and "
                "keeps what it has."
            )
            self._context.refused("coordinator_went_back", known, error)
            self._journal.tell("coordinator_went_back", known, detail=error.message)
        return False


class PullLoop(ABC):
    """Run one run and key epoch, for any kind of work.

    Args:
        stop: the request to stop.
        backoff: how long to pause without a task.
        clock: the time.
        catching_up: applies published rounds.
        rollbacks: detects a coordinator that was reset.
    """

    def __init__(
        self,
        context: RoundContext,
        backoff: Backoff,
        clock: Clock,
        *,
        catching_up: CatchingUp,
        rollbacks: RollbackDetection,
    ) -> None:
        self._context = context
        self._membership = context.membership
        self._link = context.link
        self._model = context.model
        self._store = context.store
        self._journal = context.journal
        self._stop = backoff.stop
        self._refused: tuple[RoundId, str] | None = None
        self._backoff = backoff
        self._clock = clock
        self._rollbacks = rollbacks
        self._catching_up = catching_up

    def run(self) -> Finished | EpochChanged:
        """Work until the run ends or the keys change.

        Raises:
            Stopped: a stop was requested. Everything is saved.
            FedrecError: the follower can't or must not continue.
        """
        self._begin()
        # The last report may not have arrived: a crash or new keys came between.
        self._catching_up.report(self._model.version)
        idle = 0
        while True:
            self._stop.check()
            self._before_asking()
            asked = self._clock.now()
            task = self._link.next_task(
                self._membership.client_id,
                self._membership.run,
                self._model.version,
                wait_seconds=POLL_SECONDS,
                remembered=self._rollbacks.remembered(),
            )
            brisk = self._clock.now() - asked < BRISK_SECONDS
            if not self._rollbacks.agrees(task):
                self._backoff.pause(idle)
                idle += 1
                continue
            before = self._model.version
            worked = self._do(task)
            if isinstance(task.task, Finished):
                return self._finish(task.task)
            changed = _newer_epoch(task, self._membership.epoch)
            if changed is not None:
                self._journal.tell("epoch_changed", detail=f"key epoch {changed.epoch}")
                return changed
            if worked or self._model.version > before:
                idle = 0
            elif brisk:
                self._backoff.pause(idle)
                idle += 1

    def _before_asking(self) -> None:  # noqa: B027 (not every follower has something to say)
        """Report anything that needs attention before the next task is requested."""

    def _do(self, task: Task) -> bool:
        """Catch up and do one task. Return whether there was work."""
        self._catching_up.catch_up(task.published_round)
        if _newer_epoch(task, self._membership.epoch) is not None:
            return True
        self._catching_up.report(task.published_round)
        try:
            return self._answer(task.task)
        except RevealRefused as error:
            self._journal.tell("reveal_refused", _round_of(task), detail=error.message)
            return False
        except TaskRefused as error:
            about = _round_of(task) or self._model.version
            # The coordinator may ask the same again and again.
            if self._refused != (about, error.message):
                self._refused = (about, error.message)
                self._context.refused("task_refused", about, error)
                self._journal.tell("task_refused", about, detail=error.message)
            return False
        except RoundError as error:
            # The coordinator's request crossed ours, and its round has ended. It will ask again.
            self._journal.tell("stale", _round_of(task), detail=error.message)
            return False

    @abstractmethod
    def _answer(self, work: Work) -> bool:
        """Do the coordinator's task. Return whether there was work."""

    def _begin(self) -> None:
        """Prepare for the first request."""
        self._journal.tell(
            "joined", detail=f"{self._membership.run}, key epoch {self._membership.epoch}"
        )

    def _finish(self, finished: Finished) -> Finished:
        self._journal.tell("finished", detail=finished.reason)
        return finished


def why_behind(error: NotInRoster | CoordinatorWentBack, store: FollowerStore[StoredState]) -> str:
    """Return why a party waits for a coordinator with an older key epoch than its own.

    Raises:
        NotInRoster: the roster doesn't list this party, and it isn't older than the roster here.
    """
    if isinstance(error, NotInRoster):
        known = store.state.epoch if store.is_bound else 0
        if not 0 < error.epoch < known:
            raise error
        error = epoch_went_back(known, error.epoch)
    return error.message


def _round_of(task: Task) -> RoundId | None:
    return None if isinstance(task.task, Wait | Finished) else task.task.round


def _newer_epoch(task: Task, epoch: int) -> EpochChanged | None:
    found = task.epoch
    if isinstance(task.task, Train | StepTask | Reveal):
        found = max(found, task.task.epoch)
    return EpochChanged(epoch=found) if found > epoch else None
