"""Rounds under masks for one client, with puppets for the others."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from world.fake_federation import FakeRound, World
from world.fake_link import FakeLink

from fedrec.errors import RoundClosed
from fedrec.identity.identity import Identity
from fedrec.plan.agreement import plan_fingerprint
from fedrec.protection import NoProtection, RoundTerms
from fedrec.protection.masks import Collector, MaskTerms, MaskWords, Participant
from fedrec.protection.masks.messages import (
    BUNDLE,
    GIVEN,
    INBOX,
    KEY_LIST,
    keys_from_bytes,
    signatures_to_bytes,
)
from fedrec.protection.masks.terms import ring_seed
from fedrec.wire.messages import (
    NOTHING,
    Finished,
    PublishedRound,
    Remembered,
    StepMessage,
    StepTask,
    Task,
    Train,
    UploadHeader,
)

STEPS = ("keys", "shares", "vector", "signature", "answer")
PATIENCE = 4


@dataclass
class SteppedRound:
    """One round at the coordinator, with the puppets in it.

    Attributes:
        until: the last step that is played; a round that stops before its answers is abandoned.
        given_up: whether the round is abandoned also with all answers.
        sent: by step, what the client under test sent, once for each time.
        asked: how often it was told of each step; who does not answer is given up after a while.
    """

    round: FakeRound
    until: str
    collector: Collector
    participants: list[tuple[Identity, Participant]]
    given_up: bool = False
    sent: dict[str, list[bytes]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    material: dict[str, bytes] = field(default_factory=dict)
    puppets_sum: Any = 0

    @property
    def next_step(self) -> str | None:
        """What the client has to do next; None when the round is over."""
        left = [step for step in STEPS[: STEPS.index(self.until) + 1] if step not in self.sent]
        return left[0] if left else None


class MaskedWorld(World):
    """Plays rounds under masks, one after another, and asks again for what it did not get."""

    def __init__(self, folder: Path, **plan: Any) -> None:
        super().__init__(folder, protection="masks", **plan)
        self.link: MaskedLink = MaskedLink(self)
        self.coming: deque[tuple[int, str, str, bool, int]] = deque()
        self.current: SteppedRound | None = None
        self.played: dict[int, SteppedRound] = {}

    def then(
        self,
        number: int,
        kind: str = "train",
        *,
        until: str = "answer",
        given_up: bool = False,
        without: int = 0,
    ) -> None:
        """Play a round after those that are played already, without so many of the puppets."""
        self.coming.append((number, kind, until, given_up, without))

    def next_task(self) -> Train | StepTask | Finished:
        """Return what the client has to do."""
        while True:
            if self.current is None:
                if not self.coming:
                    return Finished(reason="done")
                self._begin(*self.coming.popleft())
            step = self.current.next_step
            if step == "keys":
                return self.train(self.current.round)
            if step is not None:
                self.current.asked[step] += 1
                if self.current.asked[step] > PATIENCE:
                    self.current = None
                    continue
                epoch = self.epoch.roster.epoch
                return StepTask(round=self.current.round.number, step=step, epoch=epoch)
            self._end(self.current)

    def _begin(self, number: int, kind: str, until: str, given_up: bool, without: int) -> None:
        round_ = self.open(number, kind)
        terms = self._terms(round_)
        roster = self.epoch.roster
        seed = ring_seed(self._round_terms(round_))
        collector = Collector(terms, roster, self.mask_words(round_), graph_seed=seed)
        participants = []
        for puppet in self.puppets[without:]:
            participant, keys = Participant.begin(terms, puppet)
            collector.add_keys(keys)
            participants.append((puppet, participant))
        self.current = SteppedRound(round_, until, collector, participants, given_up)
        self.played[number] = self.current

    def mask_words(self, round_: FakeRound) -> MaskWords:
        """Return how a round's vectors are written."""
        vector = self.round_vector(round_)
        return MaskWords(vector.layout.vector_spec, vector.protection.chosen)

    def _terms(self, round_: FakeRound) -> MaskTerms:
        return MaskTerms.of(self._round_terms(round_), self.plan.protection.tolerance)

    def _round_terms(self, round_: FakeRound) -> RoundTerms:
        return RoundTerms(
            federation=self.plan.federation.name,
            run=self.run,
            round=round_.number,
            seed=self.plan.federation.seed,
            kind=round_.kind,
            base_round=round_.base,
            base_state=self.base_state(round_.base),
            catalogue_fingerprint=self.catalogue.fingerprint(),
            plan_fingerprint=plan_fingerprint(self.plan),
            roster=self.epoch.roster,
            minimum_summands=self.membership(self.puppets[0]).minimum_summands,
        )

    def material(self, step: str) -> bytes:
        """Return what the client needs for a step; the puppets take theirs the first time."""
        current = self.current
        assert current is not None and step == current.next_step
        if step not in current.material:
            current.material[step] = self._prepared(current, step)
        return current.material[step]

    def _prepared(self, current: SteppedRound, step: str) -> bytes:
        collector, roster = current.collector, self.epoch.roster
        client_id = self.identity.client_id
        if step == "shares":
            key_list = collector.close_keys()
            seed = ring_seed(self._round_terms(current.round))
            for puppet, participant in current.participants:
                bundle = participant.share(key_list, roster, seed)
                collector.add_shares(puppet.client_id, bundle)
            return KEY_LIST.to_bytes(key_list)
        if step == "vector":
            collector.close_shares()
            for number, (puppet, participant) in enumerate(current.participants):
                self._mask(current, number, puppet, participant)
            return INBOX.to_bytes(collector.inbox(client_id))
        if step == "signature":
            survivors = collector.close_vectors()
            for puppet, participant in current.participants:
                collector.add_signature(
                    puppet.client_id, participant.sign(survivors, puppet, roster)
                )
            return survivors
        collector.close_signatures()
        for puppet, participant in current.participants:
            signatures = collector.signatures_for(puppet.client_id)
            collector.add_answer(puppet.client_id, participant.give(signatures, roster))
        return signatures_to_bytes(collector.signatures_for(client_id))

    def _mask(
        self, current: SteppedRound, number: int, puppet: Identity, participant: Participant
    ) -> None:
        vector, words = self.vector(number, current.round), self.mask_words(current.round)
        current.puppets_sum = current.puppets_sum + vector
        inbox = current.collector.inbox(puppet.client_id)
        masked = participant.mask(inbox, words.encode(vector), n_wide=words.n_wide)
        payload = words.message(masked)
        self.put(current.round, puppet, payload, key_list=participant.round_digest)
        current.collector.add_vector(puppet.client_id, payload)

    def _end(self, current: SteppedRound) -> None:
        self.current = None
        if current.until != "answer" or current.given_up:
            return
        round_, collector = current.round, current.collector
        total = collector.unmask()
        base = self.shared[round_.base]
        self.shared[round_.number] = self.learner.server.apply(
            round_.kind,  # type: ignore[arg-type]
            base.number,
            base,
            total,
        )
        spec = self.mask_words(round_).spec
        plain = NoProtection(spec, NoProtection.plan(spec))
        round_.published = PublishedRound(
            round=round_.number,
            epoch=self.epoch.roster.epoch,
            kind=round_.kind,  # type: ignore[arg-type]
            contributions=round_.headers,
            statement=None,
            blob=plain.packed_sum(total, len(round_.headers)),
        )
        self.published_round = round_.number

    def of_client(self, number: int) -> np.ndarray[Any, Any]:
        """Return what the client under test contributed to a published round's sum."""
        played = self.played[number]
        return played.collector.unmask() - played.puppets_sum


class MaskedLink(FakeLink):
    """The coordinator's side of the calls of a round under masks."""

    world: MaskedWorld

    def next_task(
        self,
        client_id: str,
        run: str,
        version: int,
        *,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        self._called("next_task", client_id, run, str(version))
        task = self.world.next_task()
        return Task(published_round=self.world.published_round, task=task, epoch=0)

    def masks(self, client_id: str, run: str, round_id: int, step: str) -> bytes:
        self._called("masks", client_id)
        return self.world.material(step)

    def submit_masks(self, message: StepMessage) -> bool:
        self._called("submit_masks", message.statement(), message.signature)
        current = self._of(message.round)
        sent = current.sent.setdefault(message.step, [])
        sent.append(message.body)
        if len(sent) == 1:
            self._take(current, message)
        self.after("submit_masks")
        return len(sent) > 1

    def _take(self, current: SteppedRound, message: StepMessage) -> None:
        collector, client_id, body = current.collector, message.client_id, message.body
        match message.step:
            case "keys":
                collector.add_keys(keys_from_bytes(client_id, body)[0])
            case "shares":
                collector.add_shares(client_id, BUNDLE.from_bytes(body))
            case "signature":
                collector.add_signature(client_id, body)
            case _:
                collector.add_answer(client_id, GIVEN.from_bytes(body))

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        current = self._of(header.round)
        current.sent.setdefault("vector", []).append(payload)
        current.collector.add_vector(header.client_id, payload)
        return super().submit_update(header, payload)

    def _of(self, number: int) -> SteppedRound:
        current = self.world.current
        if current is None or current.round.number != number:
            raise RoundClosed(f"Round {number} is over.")
        return current
