"""A client's session: it does the tasks of the coordinator."""

from __future__ import annotations

from fedrec.clock import Clock
from fedrec.errors import RoundError
from fedrec.follower.patient_link import Backoff
from fedrec.follower.pull_loop import PullLoop, Work
from fedrec.wire.messages import Finished, MakeSnapshot, Reveal, StepTask, Train, Wait
from fedrec_client.round.local_model import ClientContext
from fedrec_client.round.own_updates import UpdatesCounted, UpdatesRemembered
from fedrec_client.round.participation import Participation
from fedrec_client.round.round_steps import RoundSteps
from fedrec_client.state.private_store import PrivateStore


class Session(PullLoop):
    """One client's work: it trains, and opens sums if it is a key holder."""

    _store: PrivateStore

    def __init__(
        self,
        context: ClientContext,
        backoff: Backoff,
        clock: Clock,
    ) -> None:
        super().__init__(
            context,
            backoff,
            clock,
            catching_up=UpdatesCounted(context),
            rollbacks=UpdatesRemembered(context),
        )
        self._pause_is_reported = False
        self._participation = Participation(context)
        self._taking_part: Participation | RoundSteps = self._participation
        if context.membership.protection.steps.are_several:
            self._taking_part = RoundSteps(context, self._participation)

    def _answer(self, work: Work) -> bool:
        match work:
            case Wait(reason=reason, about=about):
                if about:
                    self._journal.tell("round_refused", about, detail=reason)
                return False
            case Reveal():
                # Only the key authority opens sums.
                return False
            case Train() | StepTask() if self._paused:
                # It takes part in no sum that is opened.
                return False
            case Train():
                return self._taking_part.take_part(work)
            case StepTask():
                return self._taking_part.advance(work)
            case MakeSnapshot():
                self._send_snapshot(work)
            case Finished():
                pass
        return True

    def _begin(self) -> None:
        """Send updates whose sending a crash prevented, with the same bytes."""
        super()._begin()
        staged = self._store.state.staged
        if staged is None or staged.acknowledged or staged.closed:
            return
        try:
            self._participation.send()
        except RoundError as error:
            self._journal.tell("stale", detail=error.message)

    def _before_asking(self) -> None:
        """Report once why this client waits if its cell is paused."""
        if self._pause_is_reported or not self._paused:
            return
        self._pause_is_reported = True
        detail = (
            f"cell {self._paused} is paused: one of its clients sent data that no honest client "
            "sends. This client waits until the key authority resumes the cell (fedrec keys "
            f"roster resume {self._paused})"
        )
        self._journal.tell("cell_paused", self._model.version, detail=detail)

    @property
    def _paused(self) -> int:
        """The number of this client's cell if the key authority paused it, else 0."""
        return self._membership.paused_by(self._store.state.statement)

    def _finish(self, finished: Finished) -> Finished:
        number = self._store.in_progress
        if number is not None:
            self._store.roll_back()
            self._journal.settle(number, "abandoned")
        return super()._finish(finished)

    def _send_snapshot(self, task: MakeSnapshot) -> None:
        """Send the model for clients that join late, sealed if the protection hides it.

        Raises:
            RoundError: this client does not have that version.
        """
        member, model = self._membership, self._model
        if task.round != model.version or task.round == 0:
            raise RoundError(
                f"The snapshot of {task.round} was requested, but this client has {model.version}."
            )
        blob = model.stored(model.shared)
        if member.is_encrypted:
            blob = member.seal_of(task.round).seal_snapshot(blob)
        rows = model.rows_after(model.shared)
        self._link.submit_snapshot(member.report_on(task.round, model.shared, rows), blob)
        self._journal.tell("snapshot_sent", task.round)
