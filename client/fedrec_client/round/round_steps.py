"""Participate in a round of several steps: train first, then take the steps with the other clients.

Every step's message is stored with the resulting state before it is sent, and after a crash the
same bytes are sent. A step is taken once. The client refuses steps that a coordinator requests out
of order, or a second time with other content. The protection defines a step's bytes, and which of
them a client must refuse (`fedrec.protection.round_protocol`). A round's privacy cost is charged in
the commit that stores the protected vector, the first data that reveals anything about the users.

It does not protect against a state folder that is copied, or restored from a backup, while a round
is open.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from fedrec.errors import (
    BadSignature,
    ConflictingUpload,
    FedrecError,
    KeysError,
    PartialCell,
    ProtocolError,
    RefusedError,
    RoundClosed,
    RoundError,
    SettingsError,
    SplitView,
)
from fedrec.protection import RoundTerms
from fedrec.protection.protection import protocol_of
from fedrec.protection.round_protocol import ClientSide, Step
from fedrec.wire.messages import StepMessage, StepTask, Train
from fedrec_client.round.local_model import ClientContext
from fedrec_client.round.participation import Participation
from fedrec_client.state.client_state import StagedRound, SteppedRound


class RoundSteps:
    """Takes each step of a round at most once, whatever happens in between."""

    def __init__(self, context: ClientContext, participation: Participation) -> None:
        self._context = context
        self._membership = context.membership
        self._link = context.link
        self._model = context.model
        self._store = context.store
        self._journal = context.journal
        self._participation = participation
        protection = context.membership.protection
        self._steps = protection.steps
        self._protocol = protocol_of(protection, context.membership.plan.protection)

    def take_part(self, task: Train) -> bool:
        """Train and send a round's first message, made now or before a crash.

        Returns:
            Whether the coordinator has it.

        Raises:
            RoundError: the round is not one that follows from the local model.
            TaskRefused: items are counted twice, or trained before they are counted.
        """
        record = self._store.state.masking
        if record is None or record.round != task.round:
            self._participation.check(task)
            self._participation.give_up_before(task)
            record = self._train(task)
        elif record.step != self._steps.first.name:
            raise RoundError(f"Round {task.round} is after its first step for this client.")
        return self._send(record)

    def advance(self, task: StepTask) -> bool:
        """Take the next step of a round, or send the last one's message again.

        Returns:
            Whether the coordinator has the step's message.

        Raises:
            RoundError: this client does not participate, or the step is not its next one.
        """
        record = self._store.state.masking
        if record is None or record.round != task.round:
            raise RoundError(f"This client does not participate in round {task.round}.")
        if record.refused:
            return False
        ahead = self._steps.place(task.step) - self._steps.place(record.step)
        if ahead not in (0, 1):
            raise RoundError(
                f"Step {task.step} of round {task.round} was requested, but this client's last one "
                f"was {record.step}."
            )
        if ahead:
            raw = self._link.masks(
                self._membership.client_id, self._membership.run, task.round, task.step
            )
            try:
                record = self._take(record, self._steps.named(task.step), raw)
            except (ProtocolError, RefusedError, KeysError, SettingsError) as error:
                self._refuse(record, task.step, error)
                return False
        return self._send(record)

    def _train(self, task: Train) -> SteppedRound:
        terms, made, charged = self._participation.train(task)
        record = SteppedRound(
            round=task.round,
            kind=task.kind,
            base_round=terms.base_round,
            base_state=terms.base_state,
            step=self._steps.first.name,
            participant=self._store.keep_file("mask-state", b""),
            message=None,
            vector=self._store.keep_file("vector", made.vector.astype("<i8").tobytes()),
            private=self._store.keep_file("private", made.private.parts()),
            spent=None if charged is None else self._store.keep_file("spent", charged),
        )
        side, first = self._protocol.begin(self._terms(record), self._membership.identity)
        return self._keep(record, record.step, side, first)

    def _take(self, record: SteppedRound, step: Step, raw: bytes) -> SteppedRound:
        """Take a step with the coordinator's message for it, and store the result."""
        state, identity = self._store.read(record.participant), self._membership.identity
        side = self._protocol.resume(self._terms(record), identity, state)
        with self._timed(record, step):
            if step.brings_vector:
                return self._protect(record, step, side, raw)
            body = side.answer(step.name, raw)
        return self._keep(record, step.name, side, body)

    def _timed(self, record: SteppedRound, step: Step) -> AbstractContextManager[None]:
        """Return a callback that adds a step's seconds to the round's cost."""
        if self._steps.is_until_vectors(step.phase):
            return self._journal.timed(record.round, "seconds_protecting", "protected")
        if step.opens_sum:
            return self._journal.timed(record.round, "seconds_revealing", "revealed")
        return nullcontext()

    def _protect(
        self, record: SteppedRound, step: Step, side: ClientSide, raw: bytes
    ) -> SteppedRound:
        member = self._membership
        if record.vector is None:
            raise RoundError(f"The vector of round {record.round} is already protected.")
        own = self._model.vector(record.kind)
        vector = np.frombuffer(self._store.read(record.vector), dtype="<i8").astype(np.int64)
        payload = side.protect(raw, vector, own.protection.spec, own.protection.chosen)
        terms = self._model.terms(record.round, record.kind)
        if (terms.base_round, terms.base_state) != (record.base_round, record.base_state):
            raise RoundError(f"Round {record.round} does not start from this client's model.")
        header = member.header_for(replace(terms, key_list=side.agreement), payload, nonce=b"")
        kept = record.model_copy(
            update={
                "step": step.name,
                "participant": self._store.keep_file("mask-state", side.to_bytes()),
                "message": None,
                "vector": None,
                "spent": None,
            }
        )
        staged = StagedRound(
            header=header,
            update=self._store.keep_file("update", payload),
            private=record.private,
        )
        self._store.keep_masking(kept, staged, spent=record.spent)
        return kept

    def _keep(
        self,
        record: SteppedRound,
        step: str,
        side: ClientSide,
        body: bytes,
    ) -> SteppedRound:
        kept = record.model_copy(
            update={
                "step": step,
                "participant": self._store.keep_file("mask-state", side.to_bytes()),
                "message": self._store.keep_file("mask-message", body),
            }
        )
        self._store.keep_masking(kept)
        return kept

    def _send(self, record: SteppedRound) -> bool:
        is_vector = record.step == self._steps.vector.name
        try:
            return self._participation.send() if is_vector else self._submit(record)
        except (BadSignature, ProtocolError) as refused:
            error: FedrecError = refused
            if record.step == self._steps.first.name:
                raise
            # The coordinator told other clients something else.
            is_vector_refused = is_vector and type(error) is ProtocolError
            if isinstance(error, BadSignature) or is_vector_refused:
                error = SplitView(
                    "The coordinator refuses this client's answer to the data of step "
                    f"{record.step}: {error.message}",
                    remedy="It told clients different things. Tell the data owners.",
                )
            self._refuse(record, record.step, error)
            return False

    def _submit(self, record: SteppedRound) -> bool:
        if record.message is None:
            raise RoundError(f"Step {record.step} of round {record.round} has no message.")
        member = self._membership
        unsigned = StepMessage(
            federation=member.federation,
            run=member.run,
            round=record.round,
            epoch=member.epoch,
            client_id=member.client_id,
            step=record.step,
            body=self._store.read(record.message),
        )
        message = replace(unsigned, signature=member.identity.sign(unsigned.statement()))
        try:
            self._link.submit_masks(message)
        except RoundClosed as error:
            self._journal.tell("closed", record.round, detail=error.message)
            return False
        except ConflictingUpload as error:
            self._context.refused("conflicting_upload", record.round, error)
            self._journal.tell("closed", record.round, detail="conflict")
            return False
        self._journal.tell("sent", record.round, detail=record.step)
        return True

    def _refuse(self, record: SteppedRound, step: str, error: FedrecError) -> None:
        """Record the error, and take no further step in this round."""
        event = (
            "partial_cell" if isinstance(error, PartialCell) else self._steps.named(step).refusal
        )
        self._context.refused(event, record.round, error)
        self._store.keep_masking(record.model_copy(update={"refused": True}))
        if not isinstance(error, SplitView):
            self._journal.tell("reveal_refused", record.round, detail=error.message)

    def _terms(self, record: SteppedRound) -> RoundTerms:
        member = self._membership
        return RoundTerms(
            federation=member.federation,
            run=member.run,
            round=record.round,
            seed=member.plan.federation.seed,
            kind=record.kind,
            base_round=record.base_round,
            base_state=record.base_state,
            catalogue_fingerprint=member.catalogue_fingerprint,
            plan_fingerprint=member.plan_fingerprint,
            roster=member.roster,
            minimum_summands=member.minimum_summands,
        )
