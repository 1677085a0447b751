"""Taking part in a round under masks: train first, then five short steps with the others.

Every step's message is kept with the state that follows from it before it is sent, and after a
crash the same bytes go out. A step is taken once; what a coordinator asks for out of order, or a
second time with other content, is refused. So is a list of keys, or a set of survivors, that is not
over whole cells of the roster. What a round costs its users' privacy is charged in the commit that
keeps the masked vector, the first thing that says anything about them.

What it does not give: protection from a state folder that is copied, or restored from a backup,
while a round is open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

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
)
from fedrec.protection.masks import MaskTerms, MaskWords, Participant
from fedrec.wire.mask_bodies import (
    answer_to_bytes,
    inbox_from_bytes,
    key_list_from_bytes,
    keys_to_bytes,
    shares_to_bytes,
    signatures_from_bytes,
)
from fedrec.wire.mask_terms import mask_graph_seed, mask_terms
from fedrec.wire.messages import MaskMessage, MaskStep, MaskTask, Train
from fedrec_client.round.context import RoundContext
from fedrec_client.round.local_model import LocalModel
from fedrec_client.round.participation import Participation
from fedrec_client.state.stored_state import MaskedRound, StagedRound

__all__ = ["Masking"]

STEPS: tuple[MaskStep, ...] = get_args(MaskStep)
EVENTS = {
    "shares": "mask_keys_refused",
    "vector": "mask_inbox_refused",
    "signature": "survivors_refused",
    "answer": "shares_refused",
}
"""What the audit log calls a refusal in each step."""


class Masking:
    """Takes each step of a round at most once, whatever happens in between."""

    def __init__(self, context: RoundContext[LocalModel], participation: Participation) -> None:
        self._context = context
        self._membership = context.membership
        self._link = context.link
        self._model = context.model
        self._store = context.store
        self._journal = context.journal
        self._participation = participation

    def take_part(self, task: Train) -> bool:
        """Train and advertise keys for a round, made now or before a crash.

        Returns:
            Whether the coordinator has the keys.

        Raises:
            RoundError: the round is not one that follows from the local model.
        """
        record = self._store.state.masking
        if record is None or record.round != task.round:
            self._participation.check(task)
            self._participation.give_up_before(task)
            record = self._advertise(task)
        elif record.step != "keys":
            raise RoundError(f"Round {task.round} is past its list of keys for this client.")
        return self._send(record)

    def advance(self, task: MaskTask) -> bool:
        """Take the next step of a round, or send again what the last one made.

        Returns:
            Whether the coordinator has the step's message.

        Raises:
            RoundError: this client takes no part, or the step is not its next one.
        """
        record = self._store.state.masking
        if record is None or record.round != task.round:
            raise RoundError(f"This client takes no part in round {task.round}.")
        if record.refused:
            return False
        ahead = STEPS.index(task.step) - STEPS.index(record.step)
        if ahead not in (0, 1):
            raise RoundError(
                f"Step {task.step} of round {task.round} was asked for; this client's last one "
                f"was {record.step}."
            )
        if ahead:
            raw = self._link.masks(
                self._membership.client_id, self._membership.run, task.round, task.step
            )
            try:
                record = self._step(record, task.step, raw)
            except (ProtocolError, RefusedError, KeysError, SettingsError) as error:
                self._refuse(record, task.step, error)
                return False
        return self._send(record)

    def _advertise(self, task: Train) -> MaskedRound:
        terms, made, charged = self._participation.train(task)
        record = MaskedRound(
            round=task.round,
            kind=task.kind,
            base_round=terms.base_round,
            base_state=terms.base_state,
            step="keys",
            participant=self._store.keep_file("mask-state", b""),
            message=None,
            vector=self._store.keep_file("vector", made.vector.astype("<i8").tobytes()),
            private=self._store.keep_file("private", made.private.parts),
            spent=None if charged is None else self._store.keep_file("spent", charged),
        )
        participant, keys = Participant.begin(self._terms(record), self._membership.identity)
        return self._keep(record, "keys", participant, keys_to_bytes(keys, terms.base_state))

    def _step(self, record: MaskedRound, step: MaskStep, raw: bytes) -> MaskedRound:
        """Take a step with what the coordinator sent for it, and keep it."""
        member = self._membership
        participant = Participant.from_bytes(
            self._terms(record), member.client_id, self._store.read(record.participant)
        )
        match step:
            case "shares":
                seed = mask_graph_seed(member.plan, member.run, record.round)
                keys = key_list_from_bytes(raw)
                with self._journal.timed(record.round, "seconds_protecting", "protected"):
                    body = shares_to_bytes(participant.share(keys, member.roster, seed))
            case "vector":
                with self._journal.timed(record.round, "seconds_protecting", "protected"):
                    return self._mask(record, participant, raw)
            case "signature":
                body = participant.sign(raw, member.identity, member.roster)
            case "answer":
                signatures = signatures_from_bytes(raw)
                with self._journal.timed(record.round, "seconds_revealing", "revealed"):
                    body = answer_to_bytes(participant.give(signatures, member.roster))
            case "keys":
                raise RoundError("Keys are advertised once, as the answer to a round's opening.")
        return self._keep(record, step, participant, body)

    def _mask(self, record: MaskedRound, participant: Participant, raw: bytes) -> MaskedRound:
        member = self._membership
        if record.vector is None:
            raise RoundError(f"The vector of round {record.round} was masked already.")
        own = self._model.vector(record.kind)
        words = MaskWords(own.layout.vector_spec, own.protection.chosen)
        vector = np.frombuffer(self._store.read(record.vector), dtype="<i8").astype(np.int64)
        inbox = inbox_from_bytes(raw)
        masked = participant.mask(inbox, words.encode(vector), n_wide=words.n_wide)
        payload = words.message(masked)
        terms = self._model.terms(record.round, record.kind)
        if (terms.base_round, terms.base_state) != (record.base_round, record.base_state):
            raise RoundError(f"Round {record.round} starts from another model than this client's.")
        header = member.header_for(
            replace(terms, key_list=participant.round_digest), payload, nonce=b""
        )
        kept = record.model_copy(
            update={
                "step": "vector",
                "participant": self._store.keep_file("mask-state", participant.to_bytes()),
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
        record: MaskedRound,
        step: MaskStep,
        participant: Participant,
        body: bytes,
    ) -> MaskedRound:
        kept = record.model_copy(
            update={
                "step": step,
                "participant": self._store.keep_file("mask-state", participant.to_bytes()),
                "message": self._store.keep_file("mask-message", body),
            }
        )
        self._store.keep_masking(kept)
        return kept

    def _send(self, record: MaskedRound) -> bool:
        try:
            return self._participation.send() if record.step == "vector" else self._submit(record)
        except (BadSignature, ProtocolError) as error:
            if record.step == "keys":
                raise
            # The coordinator told others something else than this client.
            self._refuse(record, record.step, error)
            return False

    def _submit(self, record: MaskedRound) -> bool:
        if record.message is None:
            raise RoundError(f"Step {record.step} of round {record.round} has no message.")
        member = self._membership
        unsigned = MaskMessage(
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

    def _refuse(self, record: MaskedRound, step: MaskStep, error: FedrecError) -> None:
        """Note what was wrong and take no further step in this round."""
        event = "partial_cell" if isinstance(error, PartialCell) else EVENTS[step]
        self._context.refused(event, record.round, error)
        self._store.keep_masking(record.model_copy(update={"refused": True}))
        self._journal.tell("reveal_refused", record.round, detail=error.message)

    def _terms(self, record: MaskedRound) -> MaskTerms:
        member = self._membership
        return mask_terms(
            member.plan,
            plan_fingerprint=member.plan_fingerprint,
            catalogue_fingerprint=member.catalogue_fingerprint,
            run=member.run,
            epoch=member.epoch,
            round_id=record.round,
            kind=record.kind,
            base_round=record.base_round,
            base_state=record.base_state,
            minimum_summands=member.minimum_summands,
            n_members=len(member.roster.members),
        )
