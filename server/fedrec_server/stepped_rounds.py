"""Rounds of several steps in the living run: messages, steps closed, what clients fetch, the sum.

As with plain sums, what is in memory follows the store, never the other way round: after a crash,
or where something was taken but could not be committed, the coordinator's side of the round is made
again by replaying the stored messages and closing the same steps in the same order. The collection
is used in the store's thread alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import BinaryIO

from fedrec.errors import (
    DamagedFile,
    FedrecError,
    ProtocolError,
    RoundClosed,
    RoundError,
    StorageError,
)
from fedrec.ids import ClientId, RoundId
from fedrec.protection import RoundTerms
from fedrec.protection.protection import protocol_of
from fedrec.protection.round_protocol import COLLECTING, CoordinatorSide, RoundProtocol, Step
from fedrec.wire.messages import StepMessage, UploadHeader
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds import machine
from fedrec_server.rounds.backoff import missed_by_none
from fedrec_server.rounds.by_client import Asked, ByClient, Counted
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.endings import reason_of
from fedrec_server.rounds.events import StepClosed, StepHeard
from fedrec_server.rounds.selection import counted_of, has_all, lacking, may_have_all
from fedrec_server.rounds.state import Phase, Round, State
from fedrec_server.rounds.steps import (
    all_arrived,
    arrived,
    is_enough,
    is_invited,
    seconds_of,
    without_vectors,
)
from fedrec_server.run.live_run import LiveRun
from fedrec_server.uploads.round_sum import Collection
from fedrec_server.uploads.updates import GroupCommit

PATIENCE = 1 / 3
"""Of the last step's time: so long everybody may answer though fewer would do."""


class StepCollection(Collection):
    """One round at a time."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self.forget()

    def forget(self) -> None:
        """Start anew with what the store has."""
        self._place: tuple[RoundId, Phase] | None = None
        self._held: Mapping[str, ByClient[bytes]] = {}
        self._folded = Counted()
        self._side: CoordinatorSide | None = None
        # Of whom a look at all cells was, and with how many first messages the next one is due.
        self._looked: tuple[object, int] = (None, 0)

    def hear(self, round_: Round, message: StepMessage) -> None:
        """Take a message that the state machine lets pass.

        Args:
            round_: without the message.

        Raises:
            FedrecError: when it does not fit; nothing is changed.
        """
        if message.step == self._run.state.rules.steps.first.name:
            protocol = self._protocol()
            terms = self._terms(round_, protocol.base_state(message.body))
            protocol.check_first(terms, message.client_id, message.body)
            return
        self._following(round_).add(message.step, message.client_id, message.body)
        heard = round_.sent(message.step).adding(message.client_id, message.body)
        self._held = {**self._replayed_of(round_), message.step: heard}

    def add(self, counted: Counted, header: UploadHeader, message: BinaryIO) -> None:
        """Add a vector to the sum of those counted so far.

        Raises:
            ProtocolError: when its client agreed on something else than the round's others.
            MalformedUpdate: when it is malformed; the sum is as before.
            DamagedFile: when a counted vector cannot be read any more.
        """
        side = self._following(self._round_with(counted))
        if header.key_list != side.agreement:
            raise ProtocolError(
                f"The vector names something else than what round {header.round}'s clients agreed "
                "on."
            )
        side.add_vector(header.client_id, message.read())
        self._folded = counted.with_update(header)

    def finish(self, counted: Counted) -> bytes:
        """Return the sum of exactly the counted vectors, packed as without protection.

        Raises:
            DamagedFile: when one of them cannot be read any more.
            RoundError: when something is missing that clients had to send.
            RevealRefused: when no honest vectors add up to the sum.
        """
        return self._following(self._round_with(counted)).finish()

    def is_due(self, round_: Round, now: float, gone: frozenset[ClientId]) -> bool:
        """Tell whether the present step is over: all are there, or the time is.

        Args:
            gone: clients that said goodbye; guests among them are not waited for.
        """
        rules = self._run.state.rules
        if rules.steps.in_phase(round_.phase) is None:
            return False
        if now >= round_.deadline_at:
            return True
        here = arrived(rules, round_)
        left = frozenset(one for one in missed_by_none(rules, gone) if one not in here)
        if round_.phase == COLLECTING:
            return self._have_all_begun(round_, left)
        if all_arrived(rules, round_, left):
            return True
        last = rules.steps.all[-1].phase
        patient_until = round_.deadline_at - (1 - PATIENCE) * seconds_of(rules, last)
        if round_.phase != last or now < patient_until:
            return False
        return self._following(round_).can_finish

    def _have_all_begun(self, round_: Round, left: frozenset[ClientId]) -> bool:
        rules, here = self._run.state.rules, arrived(self._run.state.rules, round_)
        about = (round_.number, len(round_.asked), left)
        if self._looked[0] == about and len(here) < self._looked[1]:
            return False
        if left:
            round_ = replace(round_, asked=Asked(round_.asked - left))
        if not may_have_all(rules, round_, len(here)):
            return False
        if has_all(rules, round_, here):
            return True
        if rules.rounds.cells_per_round:
            self._looked = about, len(here) + lacking(rules, round_, here)
        return False

    def close(self, round_: Round) -> frozenset[ClientId]:
        """Close the present step; return who is left out of it.

        Whoever starts from another model than most, and whoever is only summed with others that are
        not here: of the first step, and of the sum. Of the sum only: these go on taking part.

        Raises:
            RoundError: when too few are left to go on.
            FedrecError: when those who are left cannot bring the round to its end.
        """
        rules = self._run.state.rules
        steps, step = rules.steps, self._step_of(round_)
        if step == steps.first:
            group = self._participants(round_)
            self._side = self._begun(round_, group)
            self._held, self._folded = {}, Counted()
            left_out = frozenset(round_.sent(step.name)) - group.keys()
        else:
            left_out = frozenset()
            here = arrived(rules, round_)
            if steps.is_until_vectors(round_.phase) and not is_enough(rules, round_, here):
                raise RoundError(f"Too few whole cells are left with {len(here)} clients.")
            if step.brings_vector:
                left_out = frozenset(here - rules.summable(here))
                round_ = without_vectors(rules, round_, left_out)
            self._close(self._following(round_), round_, step)
        self._place = (round_.number, steps.after(round_.phase))
        return left_out

    def material(self, round_: Round, client_id: ClientId, step: str) -> bytes:
        """Return what a participant needs for the present step.

        Raises:
            RoundClosed: when the step is not the present one, or not for this client.
        """
        present = self._run.state.rules.steps.in_phase(round_.phase)
        is_present = present is not None and present.name == step
        if not is_present or not is_invited(self._run.state.rules, round_, client_id):
            raise RoundClosed(f"Round {round_.number} has no step {step} for this client now.")
        if present == self._run.state.rules.steps.first:
            raise RoundClosed(f"Nothing is needed for step {step}.")
        return self._following(round_).material(step, client_id)

    def _round_with(self, counted: Counted) -> Round:
        round_ = self._run.state.current
        if round_ is None:
            raise RoundClosed("No round is in progress.")
        return replace(round_, accepted=counted)

    def _following(self, round_: Round) -> CoordinatorSide:
        """Return this side of a round whose first step is closed, made again if need be."""
        here = (round_.number, round_.phase)
        # Asked for every message of every client; what did not change is the same object.
        same = (self._place, self._folded, self._held) == (
            here,
            round_.accepted,
            self._replayed_of(round_),
        )
        if same and self._side is not None:
            return self._side
        self.forget()
        side = self._replayed(round_)
        self._place, self._folded, self._side = here, round_.accepted, side
        self._held = self._replayed_of(round_)
        return side

    def _replayed_of(self, round_: Round) -> dict[str, ByClient[bytes]]:
        """Return the messages that are replayed, without the first step's, which is closed."""
        steps = self._run.state.rules.steps
        return {
            name: found
            for name, found in round_.messages.items()
            if name not in (steps.first.name, steps.vector.name)
        }

    def _replayed(self, round_: Round) -> CoordinatorSide:
        side = self._begun(round_, self._participants(round_))
        for step in self._run.state.rules.steps.all[1:]:
            if step.brings_vector:
                for client_id, header in sorted(round_.accepted.items()):
                    side.add_vector(client_id, self._run.read_update(header))
            else:
                for client_id, body in sorted(round_.sent(step.name).items()):
                    side.add(step.name, client_id, body)
            if step.phase == round_.phase:
                return side
            self._close(side, round_, step)
        return side

    def _close(self, side: CoordinatorSide, round_: Round, step: Step) -> None:
        side.close(step.name, round_.sent(step.name) if step.brings_vector else ())

    def _participants(self, round_: Round) -> dict[ClientId, bytes]:
        """Return the first messages of the largest group of clients that start from one model.

        Of them those of whole cells.
        """
        found = round_.sent(self._run.state.rules.steps.first.name)
        protocol = self._protocol()
        states = {client_id: protocol.base_state(body) for client_id, body in found.items()}
        sizes = Counter(states.values())
        if not sizes:
            return {}
        chosen = max(sizes, key=lambda base_state: (sizes[base_state], base_state))
        group = [client_id for client_id, base_state in states.items() if base_state == chosen]
        counted = counted_of(self._run.state.rules, round_, group)
        return {client_id: body for client_id, body in found.items() if client_id in counted}

    def _begun(self, round_: Round, group: Mapping[ClientId, bytes]) -> CoordinatorSide:
        if not group:
            raise RoundError("No client that can take part began the round in time.")
        protocol, protection = self._protocol(), self._run.protection_of(round_.kind)
        terms = self._terms(round_, protocol.base_state(next(iter(group.values()))))
        return protocol.collect(terms, group, protection.spec, protection.chosen)

    def _protocol(self) -> RoundProtocol:
        federation = self._run.federation
        return protocol_of(federation.protection, federation.plan.protection)

    def _step_of(self, round_: Round) -> Step:
        step = self._run.state.rules.steps.in_phase(round_.phase)
        if step is None:
            raise RoundClosed(f"Round {round_.number} takes no more steps.")
        return step

    def _terms(self, round_: Round, base_state: bytes) -> RoundTerms:
        federation = self._run.federation
        return RoundTerms(
            federation=federation.plan.federation.name,
            run=self._run.state.rules.run,
            round=round_.number,
            seed=federation.plan.federation.seed,
            kind=round_.kind,
            base_round=round_.base_round,
            base_state=base_state,
            catalogue_fingerprint=federation.catalogue.fingerprint,
            plan_fingerprint=federation.plan_fingerprint,
            roster=federation.keys.roster,
            minimum_summands=self._run.state.rules.needed,
        )


class RunningSteps(GroupCommit[StepMessage]):
    """Takes in the messages of a round's steps and closes them.

    What follows from messages, such as the end of a step, is looked at once for all of a group.

    Args:
        collection: of the round; where rounds have one step it takes no messages.
    """

    def __init__(self, run: LiveRun, collection: Collection, admission: Admission) -> None:
        super().__init__(run, collection)
        self._admission = admission

    async def hear(self, message: StepMessage) -> bool:
        """Keep a client's message of one step; True when it was kept before.

        Raises:
            FedrecError: when it is not kept.
        """
        self._run.presence.heard(message.client_id)
        await self._run.work.beside(self._admission.check_step_message, message)
        return await self._run.work.uninterrupted(self._keep(message))

    async def _keep(self, message: StepMessage) -> bool:
        duplicate = await self.commit(message)
        if not duplicate:
            self._run.failpoint("masks.ack")
        return duplicate

    async def material(self, client_id: ClientId, round_id: RoundId, wanted: str) -> bytes:
        """Return what a participant needs for a step.

        Raises:
            ProtocolError: the federation's protection has no steps.
            RoundError: when the step is not the present one, or not for this client.
        """
        run = self._run
        async with run.lock:
            collection, round_ = self._collection, run.state.current
            if round_ is None or round_.number != round_id:
                raise RoundClosed(f"Round {round_id} is over.")
            return await run.work.in_thread(collection.material, round_, client_id, wanted)

    async def close_due(self, round_: Round) -> bool:
        """Close the present step if it is over; the caller holds the lock.

        Returns:
            Whether the round moved on, or ended.
        """
        run, collection = self._run, self._collection
        if not run.state.rules.steps.are_several:
            # Spares a round of one step the way to another thread and back.
            return False
        try:
            now, gone = run.clock.now(), run.presence.gone()
            if not await run.work.in_thread(collection.is_due, round_, now, gone):
                return False
            left_out = await run.work.in_thread(collection.close, round_)
        except FedrecError as error:
            if isinstance(error, StorageError) and not isinstance(error, DamagedFile):
                raise
            collection.forget()
            await run.fail(round_.number, reason_of(error), error)
            return True
        closed = StepClosed(
            now=run.clock.now(), round=round_.number, phase=round_.phase, left_out=left_out
        )
        try:
            await run.apply(closed)
        except BaseException:
            collection.forget()
            raise
        run.failpoint("masks.closed")
        return True

    def _take(self, state: State, what: StepMessage) -> tuple[State, tuple[Change, ...]]:
        after, changes = machine.step(state, StepHeard(now=self._run.clock.now(), message=what))
        collection, round_ = self._collection, state.current
        if round_ is None:
            raise RoundClosed(f"Round {what.round} is over.")
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            collection.hear(round_, what)
        return after, changes

    def _decided(self) -> None:
        self._run.advance_soon()
