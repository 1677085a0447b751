"""A simulated round under masks: all clients and the coordinator in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Plan
from fedrec.identity.cells import Cell, Partition, Standing
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.protection import Protection, VectorSpec
from fedrec.protection.masks import Collector, MaskTerms, MaskWords, Participant
from fedrec.wire.mask_terms import tolerance_of
from fedrec_lab.simulation.adder import Adder

__all__ = ["MaskedAdder"]


class MaskedAdder(Adder):
    """Really agrees on keys, masks, signs and unmasks; nobody drops out.

    Args:
        n_clients: in every round.
    """

    def __init__(self, plan: Plan, protection: Protection, n_clients: int) -> None:
        self._plan = plan
        self._protection = protection
        people = [Identity.create() for _ in range(n_clients)]
        self._people = sorted(people, key=lambda person: person.client_id)
        self._roster = Roster(
            federation=plan.federation.name,
            epoch=1,
            members=tuple(person.public for person in self._people),
            minimum_summands=plan.rounds.minimum_summands,
            protection="masks",
            protection_fingerprint=protection.chosen.fingerprint(),
            context_sha256=bytes(32),
            secrets_sha256=bytes(32),
            authority_key=bytes(32),
            ca_sha256=bytes(32),
            partition=_one_cell(person.client_id for person in self._people),
        )
        self._rounds = 0

    def add_up(self, vectors: Sequence[NDArray[np.int64]], spec: VectorSpec) -> NDArray[np.int64]:
        """Play a round and return the sum."""
        self._rounds += 1
        encoding = MaskWords(spec, self._protection.over(spec).chosen)
        terms = MaskTerms(
            federation=self._plan.federation.name,
            run="simulation",
            round=RoundId(self._rounds),
            epoch=1,
            terms_digest=bytes(32),
            minimum_summands=max(3, self._plan.rounds.minimum_summands),
            n_members=len(self._people),
            tolerance=tolerance_of(self._plan.protection),
        )
        collector = Collector(terms, self._roster, encoding)
        people = self._people[: len(vectors)]
        participants = []
        for person in people:
            participant, keys = Participant.begin(terms, person)
            participants.append(participant)
            collector.add_keys(keys)
        key_list = collector.close_keys()
        both = list(zip(people, participants, strict=True))
        for person, participant in both:
            collector.add_shares(person.client_id, participant.share(key_list, self._roster))
        collector.close_shares()
        for (person, participant), vector in zip(both, vectors, strict=True):
            words = encoding.encode(vector)
            inbox = collector.inbox(person.client_id)
            masked = participant.mask(inbox, words, n_wide=encoding.n_wide)
            collector.add_vector(person.client_id, encoding.message(masked))
        survivors = collector.close_vectors()
        for person, participant in both:
            collector.add_signature(
                person.client_id, participant.sign(survivors, person, self._roster)
            )
        collector.close_signatures()
        for person, participant in both:
            signatures = collector.signatures_for(person.client_id)
            collector.add_answer(person.client_id, participant.give(signatures, self._roster))
        return collector.unmask()


def _one_cell(clients: Iterable[ClientId]) -> Partition:
    """Return a cell of all: a simulation's rounds are of everybody."""
    core = tuple(clients)
    return Partition(
        cell_size=len(core),
        cells=(Cell(id=1, since=1, core=core),),
        standings=tuple(Standing(client_id=client_id, since=1) for client_id in core),
    )
