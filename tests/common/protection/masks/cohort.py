"""A round among participants in this process, with whoever drops out at any step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from conformance.protection_suite import random_vectors
from world.cells import partition_of

from fedrec.identity.cells import Partition, whole_among
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.protection.masks import (
    Collector,
    Inbox,
    KeyList,
    MaskTerms,
    MaskWords,
    Participant,
    Tolerance,
    plan_masks,
)
from fedrec.protection.masks.keys import Words, add_mask
from fedrec.protection.vector import Integers, SegmentSpec, VectorSpec

TEN_TEN = Tolerance(corrupt_share=0.1, dropout_share=0.1, malicious=False)
SPEC = VectorSpec(
    segments=(
        SegmentSpec(name="items", length=50, max_abs_sum=2**31 - 1),
        SegmentSpec(name="holders", length=7, max_abs_sum=1000, signed=False),
        SegmentSpec(name="wide", length=5, max_abs_sum=2**50),
    ),
    max_summands=200,
)


def keystream(key: bytes, n_words: int) -> Words:
    """Return the first words that a 32-byte key gives, uint32 of shape (n_words,)."""
    words = np.zeros(n_words, dtype=np.dtype("<u4"))
    add_mask(words, key, 1, n_wide=0)
    return words


def make_terms(
    tolerance: Tolerance = TEN_TEN,
    *,
    round_id: int = 1,
    minimum: int = 3,
    n_members: int = 3,
) -> MaskTerms:
    return MaskTerms(
        federation="test",
        run="run",
        round=RoundId(round_id),
        epoch=1,
        terms_digest=b"t" * 32,
        minimum_summands=minimum,
        n_members=n_members,
        tolerance=tolerance,
    )


def make_people(count: int, cell_size: int = 0) -> tuple[list[Identity], Roster]:
    """Return identities in the order of their client ids, and their roster.

    Args:
        cell_size: of consecutive cells; without cells any client may be missing from a sum,
            which is how the arithmetic is tested.
    """
    people = sorted((Identity.create() for _ in range(count)), key=lambda one: one.client_id)
    roster = Roster(
        federation="test",
        epoch=1,
        members=tuple(person.public for person in people),
        minimum_summands=3,
        protection="masks",
        protection_fingerprint="00" * 32,
        context_sha256=bytes(32),
        secrets_sha256=bytes(32),
        authority_key=bytes(32),
        ca_sha256=bytes(32),
        partition=partition_of((one.client_id for one in people), cell_size)
        if cell_size
        else Partition(),
    )
    return people, roster


def make_words(spec: VectorSpec = SPEC) -> MaskWords:
    return MaskWords(spec, plan_masks(spec))


@dataclass
class Cohort:
    """Every client of one round, and everything that the coordinator sees."""

    people: list[Identity]
    roster: Roster
    terms: MaskTerms
    words: MaskWords
    vectors: list[Integers]
    collector: Collector
    participants: list[Participant] = field(default_factory=list)
    key_list: KeyList = field(default_factory=lambda: KeyList(()))
    survivors: bytes = b""

    @classmethod
    def of(
        cls,
        count: int,
        tolerance: Tolerance = TEN_TEN,
        *,
        spec: VectorSpec = SPEC,
        round_id: int = 1,
        minimum: int = 3,
        people: tuple[list[Identity], Roster] | None = None,
    ) -> Cohort:
        members, roster = people or make_people(count)
        terms = make_terms(
            tolerance, round_id=round_id, minimum=minimum, n_members=len(roster.members)
        )
        words = make_words(spec)
        collector = Collector(terms, roster, words, graph_seed=b"seed of the ring")
        return cls(members, roster, terms, words, random_vectors(spec, count), collector)

    def id(self, position: int) -> ClientId:
        return self.people[position].client_id

    def positions(self, without: Collection[int] = ()) -> list[int]:
        return [own for own in range(len(self.people)) if own not in without]

    def total(self, without: Collection[int] = ()) -> Integers:
        return np.sum([self.vectors[own] for own in self.positions(without)], axis=0)

    def restart(self, position: int) -> None:
        """Replace a participant by what it stored."""
        raw = self.participants[position].to_bytes()
        self.participants[position] = Participant.from_bytes(self.terms, self.id(position), raw)

    def advertise(self) -> None:
        for person in self.people:
            participant, keys = Participant.begin(self.terms, person)
            self.participants.append(participant)
            self.collector.add_keys(keys)
        self.key_list = self.collector.close_keys()

    def share(self, without: Collection[int] = ()) -> None:
        for own in self.positions(without):
            bundle = self.participants[own].share(self.key_list, self.roster, b"seed of the ring")
            self.collector.add_shares(self.id(own), bundle)
        self.collector.close_shares()

    def begin(self, without: Collection[int] = ()) -> None:
        """Take the first two steps: keys, and shares of those who are still there."""
        self.advertise()
        self.share(without)

    def masked(self, own: int) -> bytes:
        """Return a participant's masked vector without sending it."""
        words = self.words.encode(self.vectors[own])
        return self.words.message(self.add_masks(own, self.collector.inbox(self.id(own)), words))

    def add_masks(self, own: int, inbox: Inbox, words: Words) -> Words:
        """Have a participant mask words."""
        return self.participants[own].mask(inbox, words, n_wide=self.words.n_wide)

    def mask(self, without: Collection[int] = ()) -> None:
        """Send the vectors of those whose cells are whole; all others take part without theirs."""
        here = [self.id(own) for own in self.positions(without)]
        counted = whole_among(self.roster.partition, here)
        for own in self.positions(without):
            message = self.masked(own)
            if self.id(own) in counted:
                self.collector.add_vector(self.id(own), message)
        self.survivors = self.collector.close_vectors(set(here) - counted)

    def sign(self, without: Collection[int] = ()) -> None:
        for own in self.positions(without):
            signature = self.participants[own].sign(self.survivors, self.people[own], self.roster)
            self.collector.add_signature(self.id(own), signature)
        self.collector.close_signatures()

    def give(self, without: Collection[int] = ()) -> None:
        for own in self.positions(without):
            signatures = self.collector.signatures_for(self.id(own))
            given = self.participants[own].give(signatures, self.roster)
            self.collector.add_answer(self.id(own), given)

    def run(
        self,
        *,
        before: Collection[int] = (),
        after: Collection[int] = (),
        late: Collection[int] = (),
    ) -> Integers:
        """Return the sum of a whole round.

        Args:
            before: drop out after their shares, before their vectors.
            after: drop out after their vectors, before they sign.
            late: drop out after they signed.
        """
        self.begin()
        self.mask(before)
        self.sign({*before, *after})
        self.give({*before, *after, *late})
        assert self.collector.can_unmask
        return self.collector.unmask()
