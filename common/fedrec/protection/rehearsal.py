"""Make a round's real protected sum in one process, for all clients and the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from secrets import token_bytes

from fedrec.errors import SettingsError
from fedrec.identity.cells import Cell, Partition, Standing
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.protection.none import NoProtection
from fedrec.protection.protection import (
    OneStepProtection,
    Protection,
    in_one_step,
    protocol_of,
)
from fedrec.protection.round_protocol import RoundTerms
from fedrec.protection.settings import FEWEST_SUMMANDS, ProtectionSettings
from fedrec.protection.vector import Integers, VectorSpec

_TAG_KEY_BYTES = 32


def check_summands(protection: Protection, n_clients: int) -> None:
    """Refuse a number of clients whose messages the protection can't add up.

    Raises:
        SettingsError: the number is out of bounds. The error names the bounds.
    """
    fewest, most = (
        FEWEST_SUMMANDS if protection.hides_updates else 1,
        protection.chosen.max_summands,
    )
    if not fewest <= n_clients <= most:
        raise SettingsError(
            f"{n_clients} client{'s' * (n_clients != 1)} cannot be summed under {protection.name}. "
            f"Use {fewest} to {most}.",
            remedy="Set --clients (n_clients in Python) within these bounds, or don't protect.",
        )


class Rehearsal(ABC):
    """Protect, add up and reveal vectors, without clients that drop out."""

    @abstractmethod
    def add_up(self, vectors: Sequence[Integers], spec: VectorSpec) -> Integers:
        """Return the exact sum of a round's vectors, int64 of shape (length,).

        Args:
            spec: the vectors' description, a part of the protection's own vector.
        """


def rehearse(protection: Protection, settings: ProtectionSettings, n_clients: int) -> Rehearsal:
    """Return the object that rehearses a protection's rounds.

    Args:
        protection: the protection of the largest vector.
        n_clients: the number of clients in every round.
    """
    if protection.steps.are_several:
        return _StepByStep(protection, settings, n_clients)
    return _WithOneKey(in_one_step(protection))


class _WithOneKey(Rehearsal):
    """Do the work of clients, coordinator and revealing client with one key."""

    def __init__(self, protection: OneStepProtection) -> None:
        self._protection = protection
        self._context, secret = protection.generate()
        with secret:
            # One process plays all parties, so the tags of sums aren't checked.
            tag_key = token_bytes(_TAG_KEY_BYTES)
            self._member = protection.member(self._context, secret, tag_key=tag_key)

    def add_up(self, vectors: Sequence[Integers], spec: VectorSpec) -> Integers:
        """Protect every vector, add the messages and reveal the sum."""
        protection = self._protection.over(spec)
        accumulator, member = protection.accumulator(self._context), self._member.over(protection)
        for vector in vectors:
            accumulator.add(member.protect(vector, token_bytes(_TAG_KEY_BYTES)))
        return member.reveal(accumulator.finish(), len(vectors))


class _StepByStep(Rehearsal):
    """Play both sides of every step of a round protocol."""

    def __init__(
        self, protection: Protection, settings: ProtectionSettings, n_clients: int
    ) -> None:
        self._protection = protection
        self._protocol = protocol_of(protection, settings)
        people = [Identity.create() for _ in range(n_clients)]
        self._people = sorted(people, key=lambda person: person.client_id)
        self._roster = Roster(
            federation="rehearsal",
            epoch=1,
            members=tuple(person.public for person in self._people),
            minimum_summands=FEWEST_SUMMANDS,
            protection=protection.name,
            protection_fingerprint=protection.chosen.fingerprint(),
            context_sha256=bytes(32),
            secrets_sha256=bytes(32),
            authority_key=bytes(32),
            ca_sha256=bytes(32),
            partition=_one_cell(person.client_id for person in self._people),
        )
        self._rounds = 0

    def add_up(self, vectors: Sequence[Integers], spec: VectorSpec) -> Integers:
        """Play a round and return the sum."""
        self._rounds += 1
        protection, terms = self._protection.over(spec), self._terms()
        people = self._people[: len(vectors)]
        begun = [self._protocol.begin(terms, person) for person in people]
        both = [(person.client_id, side) for person, (side, _) in zip(people, begun, strict=True)]
        firsts = {who: first for (who, _), (_, first) in zip(both, begun, strict=True)}
        collected = self._protocol.collect(terms, firsts, spec, protection.chosen)
        for step in protection.steps.all[1:]:
            for (client_id, side), vector in zip(both, vectors, strict=True):
                material = collected.material(step.name, client_id)
                if step.brings_vector:
                    message = side.protect(material, vector, spec, protection.chosen)
                    collected.add_vector(client_id, message)
                else:
                    collected.add(step.name, client_id, side.answer(step.name, material))
            collected.close(step.name)
        plain = NoProtection(spec, NoProtection.plan(spec))
        context, secret = plain.generate()
        with secret:
            return plain.member(context, secret).reveal(collected.finish(), len(vectors))

    def _terms(self) -> RoundTerms:
        return RoundTerms(
            federation="rehearsal",
            run="rehearsal",
            round=RoundId(self._rounds),
            seed=0,
            kind="train",
            base_round=RoundId(0),
            base_state=bytes(32),
            catalogue_fingerprint="",
            plan_fingerprint="",
            roster=self._roster,
            minimum_summands=FEWEST_SUMMANDS,
        )


def _one_cell(clients: Iterable[ClientId]) -> Partition:
    """Return one cell of all clients, because these rounds include every client."""
    core = tuple(clients)
    return Partition(
        cell_size=len(core),
        cells=(Cell(id=1, since=1, core=core),),
        standings=tuple(Standing(client_id=client_id, since=1) for client_id in core),
    )
