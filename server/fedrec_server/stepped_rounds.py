"""Rounds of several steps in the live run: messages, closed steps, material for clients, the sum.

As with plain sums, memory follows the store, never the other way round. After a crash or a failed
commit, the coordinator's side of the round is rebuilt: the stored messages are replayed and the
same steps closed in the same order. Only the store's thread uses the collection.
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
from fedrec_server.rounds.backoff import dispensable
from fedrec_server.rounds.by_client import Asked, ByClient, Counted
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.endings import reason_of
from fedrec_server.rounds.events import StepClosed, StepHeard
from fedrec_server.rounds.selection import counted_of, has_all, lacking, may_have_all
from fedrec_server.rounds.state import Round, State
from fedrec_server.rounds.steps import (
    all_arrived,
    arrived,
    is_enough,
    is_invited,
    seconds_of,
    without_vectors,
)
from fedrec_server.run.live_run import LiveRun
from fedrec_server.uploads.round_sum import Collection, GroupCommit

PATIENCE = 1 / 3
"""Part of the last step's time in which all clients may answer, even if fewer would be enough."""


class StepCollection(Collection):
    """The collection of one round at a time."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self.forget()

    def forget(self) -> None:
        """Start again from the store's content."""
        self._place: tuple[RoundId, str] | None = None
        self._held: Mapping[str, ByClient[bytes]] = {}
        self._folded = Counted()
        self._side: CoordinatorSide | None = None
        # The clients of the last check of all cells, and the messages needed before the next.
        self._looked: tuple[object, int] = (None, 0)

    def hear(self, round_: Round, message: StepMessage) -> None:
        """Take a message that the state machine admits.

        Args:
            round_: the round without the message.

        Raises:
            FedrecError: if the message is inconsistent with the round. The collection is unchanged.
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
            ProtocolError: if its client agreed on something else than the others.
            MalformedUpdate: if the vector is malformed. The sum is unchanged.
            DamagedFile: if a counted vector is no longer readable.
        """
        side = self._following(self._round_with(counted))
        if header.key_list != side.agreement:
            raise ProtocolError(
                f"The vector does not name what the clients of round {header.round} agreed on."
            )
        side.add_vector(header.client_id, message.read())
        self._folded = counted.with_update(header)

    def finish(self, counted: Counted) -> bytes:
        """Return the sum of exactly the counted vectors, packed as without protection.

        Raises:
            DamagedFile: if a counted vector is no longer readable.
            RoundError: if a required message is missing.
            RevealRefused: if no honest vectors add up to the sum.
        """
        return self._following(self._round_with(counted)).finish()

    def is_due(self, round_: Round, now: float, gone: frozenset[ClientId]) -> bool:
        """Return whether the current step is over: all messages arrived, or the deadline passed.

        Args:
            gone: clients that said goodbye. The step does not wait for guests among them.
        """
        rules = self._run.state.rules
        if rules.steps.in_phase(round_.phase) is None:
            return False
        if now >= round_.deadline_at:
            return True
        here = arrived(rules, round_)
        left = frozenset(one for one in dispensable(rules, gone) if one not in here)
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
        """Close the current step. Return the clients that it leaves out.

        The first step and the sum leave out clients that start from a different model than most.
        They also leave out members of incomplete cells. Clients that only the sum leaves out stay
        participants.

        Raises:
            RoundError: if too few are left to continue.
            FedrecError: if the remaining clients cannot finish the round.
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
        """Return the data that a participant needs for the current step.

        Raises:
            RoundClosed: if the step is not the current one, or not for this client.
        """
        present = self._run.state.rules.steps.in_phase(round_.phase)
        is_present = present is not None and present.name == step
        if not is_present or not is_invited(self._run.state.rules, round_, client_id):
            raise RoundClosed(f"Round {round_.number} has no step {step} for this client now.")
        if present == self._run.state.rules.steps.first:
            raise RoundClosed(f"Step {step} needs no data from the coordinator.")
        return self._following(round_).material(step, client_id)

    def _round_with(self, counted: Counted) -> Round:
        round_ = self._run.state.current
        if round_ is None:
            raise RoundClosed("No round is in progress.")
        return replace(round_, accepted=counted)

    def _following(self, round_: Round) -> CoordinatorSide:
        """Return the coordinator's side of a round whose first step is closed.

        Rebuild it if needed.
        """
        here = (round_.number, round_.phase)
        # Called for every message of every client. An unchanged part is the same object.
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
        """Return the messages to replay, without those of the closed first step."""
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

        Only members of whole cells are included.
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
            raise RoundClosed(f"Round {round_.number} has no further steps.")
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
    """Receives the messages of a round's steps and closes them.

    The consequences of messages, such as the end of a step, are checked once for a whole group.

    Args:
        collection: the round's collection. With rounds of one step it takes no messages.
    """

    def __init__(self, run: LiveRun, collection: Collection, admission: Admission) -> None:
        super().__init__(run, collection)
        self._admission = admission

    async def hear(self, message: StepMessage) -> bool:
        """Keep a client's message of one step. Return whether it was already kept.

        Raises:
            FedrecError: if the message is not kept.
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
        """Return the data that a participant needs for a step.

        Raises:
            ProtocolError: the federation's protection has no steps.
            RoundError: if the step is not the current one, or not for this client.
        """
        run = self._run
        async with run.lock:
            collection, round_ = self._collection, run.state.current
            if round_ is None or round_.number != round_id:
                raise RoundClosed(f"Round {round_id} is over.")
            return await run.work.in_thread(collection.material, round_, client_id, wanted)

    async def close_due(self, round_: Round) -> bool:
        """Close the current step if it is over. The caller holds the lock.

        Returns:
            Whether the round moved on, or ended.
        """
        run, collection = self._run, self._collection
        if not run.state.rules.steps.are_several:
            # Rounds of one step don't need the other thread.
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

    def _take(self, state: State, item: StepMessage) -> tuple[State, tuple[Change, ...]]:
        after, changes = machine.step(state, StepHeard(now=self._run.clock.now(), message=item))
        collection, round_ = self._collection, state.current
        if round_ is None:
            raise RoundClosed(f"Round {item.round} is over.")
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            collection.hear(round_, item)
        return after, changes

    def _decided(self) -> None:
        self._run.advance_soon()
