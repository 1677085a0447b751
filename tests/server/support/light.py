"""A client of masked rounds that trains nothing, so that a thousand of them fit into a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_fingerprint, plan_from_json
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS, RoundTerms, VectorSpec
from fedrec.protection.masks import KeyList, MaskTerms, MaskWords, Participant
from fedrec.protection.masks.messages import (
    BUNDLE,
    GIVEN,
    INBOX,
    key_list_from_bytes,
    keys_to_bytes,
    signatures_from_bytes,
)
from fedrec.protection.masks.terms import ring_seed
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    FederationInfo,
    StepMessage,
    StepTask,
    Train,
    UploadHeader,
)

BASE_STATE = bytes(32)
Fetch = Callable[[RoundId, str], bytes]


def made_up(length: int, number: int, round_id: int) -> NDArray[np.int64]:
    """Return what a client contributes: different for every client and round."""
    return (np.arange(length) % 1000 + 7 * number + 10 * round_id).astype(np.int64)


@lru_cache(maxsize=2)
def key_list_of(raw: bytes) -> KeyList:
    """Read a list of keys once for all clients of a process: a thousand take a gigabyte."""
    return key_list_from_bytes(raw)


@lru_cache(maxsize=4)
def roster_of(raw: bytes) -> Roster:
    """Read a roster once for all clients of a process."""
    return Roster.from_json(raw)


@lru_cache(maxsize=4)
def plan_of(text: str) -> tuple[Plan, str]:
    """Read a plan, and name it, once for all clients of a process."""
    plan = plan_from_json(text)
    return plan, plan_fingerprint(plan)


class LightClient:
    """Keeps everything in memory, and answers a task with what is to be sent.

    Args:
        identity: the client's.
        info: what the coordinator says of the federation.
        spec: the protected vector.
        vector: returns what the client contributes to a round.
    """

    def __init__(
        self,
        identity: Identity,
        info: FederationInfo,
        spec: VectorSpec,
        vector: Callable[[RoundId], NDArray[np.int64]],
    ) -> None:
        self.identity = identity
        self._info = info
        self._plan, self._plan_fingerprint = plan_of(info.plan_json)
        self._roster = roster_of(info.roster_json)
        self._vector = vector
        kind = PROTECTIONS["masks"]
        self._words = MaskWords(spec, kind.plan(spec))
        self._train: Train | None = None
        self._participant: Participant | None = None

    def advertise(self, task: Train) -> StepMessage:
        """Begin a round."""
        self._train = task
        self._participant, keys = Participant.begin(self._terms(task), self.identity)
        return self._message("keys", keys_to_bytes(keys, BASE_STATE))

    def step(self, task: StepTask, fetch: Fetch) -> StepMessage | tuple[UploadHeader, bytes]:
        """Take the next step of the round."""
        participant = self._participant
        assert participant is not None and self._train is not None
        assert task.round == self._train.round
        raw = fetch(task.round, task.step)
        if task.step == "shares":
            seed = ring_seed(self._round_terms(self._train))
            bundle = participant.share(key_list_of(raw), self._roster, seed)
            return self._message("shares", BUNDLE.to_bytes(bundle))
        if task.step == "vector":
            words = self._words.encode(self._vector(task.round))
            inbox = INBOX.from_bytes(raw)
            masked = participant.mask(inbox, words, n_wide=self._words.n_wide)
            payload = self._words.message(masked)
            return self._header(payload, participant.round_digest), payload
        if task.step == "signature":
            return self._message("signature", participant.sign(raw, self.identity, self._roster))
        given = participant.give(signatures_from_bytes(raw), self._roster)
        return self._message("answer", GIVEN.to_bytes(given))

    def _terms(self, task: Train) -> MaskTerms:
        return MaskTerms.of(self._round_terms(task), self._plan.protection.tolerance)

    def _round_terms(self, task: Train) -> RoundTerms:
        rounds = self._plan.rounds
        return RoundTerms(
            federation=self._plan.federation.name,
            run=self._info.run,
            round=task.round,
            seed=self._plan.federation.seed,
            kind=task.kind,
            base_round=task.base_round,
            base_state=BASE_STATE,
            catalogue_fingerprint=self._info.catalogue_fingerprint,
            plan_fingerprint=self._plan_fingerprint,
            roster=self._roster,
            minimum_summands=max(
                3, rounds.minimum_clients, rounds.minimum_summands, self._roster.minimum_summands
            ),
        )

    def _message(self, step: str, body: bytes) -> StepMessage:
        assert self._train is not None
        unsigned = StepMessage(
            federation=self._info.federation,
            run=self._info.run,
            round=self._train.round,
            epoch=self._info.epoch,
            client_id=self.identity.client_id,
            step=step,
            body=body,
        )
        return replace(unsigned, signature=self.identity.sign(unsigned.statement()))

    def _header(self, payload: bytes, key_list: bytes) -> UploadHeader:
        assert self._train is not None
        blob = Blob.of(payload)
        unsigned = UploadHeader(
            protocol_version=PROTOCOL_VERSION,
            federation=self._info.federation,
            run=self._info.run,
            round=self._train.round,
            kind=self._train.kind,
            base_round=self._train.base_round,
            base_state=BASE_STATE,
            key_list=key_list,
            nonce=b"",
            epoch=self._info.epoch,
            client_id=self.identity.client_id,
            catalogue_fingerprint=self._info.catalogue_fingerprint,
            plan_fingerprint=self._plan_fingerprint,
            length=blob.length,
            digest=blob.digest,
            n_rows=self._info.n_items,
        )
        return replace(unsigned, signature=self.identity.sign(unsigned.statement()))
