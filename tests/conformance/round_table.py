"""All clients of a round of several steps and its coordinator, who hand each other bytes alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from world.cells import partition_of

from fedrec.identity.cells import Partition
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.plan.protections import AskedRound
from fedrec.protection import NoProtection, Protection, ProtectionSettings, RoundTerms, VectorSpec
from fedrec.protection.protection import protocol_of
from fedrec.protection.round_protocol import ClientSide, CoordinatorSide, Step
from fedrec.protection.vector import Integers

MINIMUM = 3


def packed(spec: VectorSpec, vector: Integers) -> bytes:
    """Return a vector as it travels without protection."""
    plain = NoProtection(spec, NoProtection.plan(spec))
    return plain.member(plain.generate()[0]).protect(vector)


def unpacked(spec: VectorSpec, total: bytes, n_summands: int) -> Integers:
    """Return what a round's sum says."""
    plain = NoProtection(spec, NoProtection.plan(spec))
    return plain.member(plain.generate()[0]).reveal(total, n_summands)


class RoundTable:
    """One round, step by step.

    Args:
        settings: the section of the settings.
        vectors: one for each client.
        spec: what they are; the protection's own vector, or a part of it.
        people: of another round's table, to have the same clients again.
        cell: whether they are one cell, always summed together; else any user may be missing.

    Attributes:
        sent: by step, each client's message.
        fetched: by step, what the coordinator sent each client for it.
    """

    def __init__(
        self,
        protection: Protection,
        settings: ProtectionSettings,
        vectors: Sequence[Integers],
        *,
        spec: VectorSpec | None = None,
        number: int = 1,
        people: Sequence[Identity] = (),
        cell: bool = False,
    ) -> None:
        self.protection = protection.over(spec or protection.spec)
        self.spec, self.plan = self.protection.spec, self.protection.chosen
        self.protocol, self._settings = protocol_of(protection, settings), settings
        self.people = tuple(people) or _people(len(vectors))
        self.terms = _terms(protection, self.people, number, cell=cell)
        self.ids = [person.client_id for person in self.people]
        self.vectors = dict(zip(self.ids, vectors, strict=True))
        begun = {who.client_id: self.protocol.begin(self.terms, who) for who in self.people}
        self._identity = {person.client_id: person for person in self.people}
        self._stored = {who: side.to_bytes() for who, (side, _) in begun.items()}
        self.sent = {protection.steps.first.name: {who: body for who, (_, body) in begun.items()}}
        self.fetched: dict[str, dict[ClientId, bytes]] = {}
        self._here = list(self.ids)
        self._coordinator: CoordinatorSide | None = None

    @property
    def later(self) -> tuple[Step, ...]:
        """The steps after the first."""
        return self.protection.steps.all[1:]

    @property
    def coordinator(self) -> CoordinatorSide:
        """The coordinator's side, once the first step is closed."""
        if self._coordinator is None:
            self._coordinator = self._collected()
        return self._coordinator

    @property
    def summed(self) -> Integers:
        """What the vectors that were sent add up to."""
        return sum((self.vectors[who] for who in self.sent[self._vector]), 0 * self._any)

    @property
    def asked(self) -> AskedRound:
        """The round as settings ask for it."""
        return AskedRound(
            n_clients=len(self.ids),
            needed=MINIMUM,
            settings=self._settings,
            maximum_users=100,
            fraction_bits=8,
            changes=lambda users, bits: self.spec,
        )

    def side(self, who: ClientId, terms: RoundTerms | None = None) -> ClientSide:
        """Return a client's side as it was stored after its last step."""
        return self.protocol.resume(terms or self.terms, self._identity[who], self._stored[who])

    def stored(self, who: ClientId) -> bytes:
        """Return the state that a client keeps."""
        return self._stored[who]

    def restore(self, who: ClientId, stored: bytes) -> None:
        """Put a client's state back."""
        self._stored[who] = stored

    @property
    def stranger(self) -> ClientId:
        """A user who takes no part."""
        return Identity.create().client_id

    def message(self, step: Step, who: ClientId) -> bytes:
        """Have a client take a step, from what it stored, and store what follows."""
        side = self.side(who)
        material = self.coordinator.material(step.name, who)
        self.fetched.setdefault(step.name, {})[who] = material
        if step.brings_vector:
            message = side.protect(material, self.vectors[who], self.spec, self.plan)
        else:
            message = side.answer(step.name, material)
        self._stored[who] = side.to_bytes()
        return message

    def take(self, step: Step, *, gone: Collection[ClientId] = ()) -> None:
        """Have all clients that are left take a step, without closing it."""
        self._here = [who for who in self._here if who not in gone]
        for who in self._here:
            message = self.message(step, who)
            self.sent.setdefault(step.name, {})[who] = message
            self.give(self.coordinator, step, who, message)

    def give(self, to: CoordinatorSide, step: Step, who: ClientId, message: bytes) -> None:
        """Hand a coordinator a client's message."""
        if step.brings_vector:
            to.add_vector(who, message)
        else:
            to.add(step.name, who, message)

    def play(self, *, before: str = "", gone_at: str = "", gone: Collection[ClientId] = ()) -> None:
        """Play the steps up to one that is not taken, or all.

        Args:
            gone_at: the step from which on some clients are gone.
        """
        for step in self.later:
            if step.name == before:
                return
            self.take(step, gone=gone if step.name == gone_at else ())
            self.coordinator.close(step.name)

    def finish(self) -> Integers:
        """Return the sum."""
        return unpacked(self.spec, self.coordinator.finish(), len(self.sent[self._vector]))

    def replayed(self, *, up_to: str = "") -> CoordinatorSide:
        """Make the coordinator's side again from what was sent, as after a crash."""
        side = self._collected()
        for step in self.later:
            if step.name == up_to:
                return side
            for who, message in sorted(self.sent[step.name].items()):
                self.give(side, step, who, message)
            side.close(step.name)
        return side

    @property
    def _vector(self) -> str:
        return self.protection.steps.vector.name

    @property
    def _any(self) -> Integers:
        return next(iter(self.vectors.values()))

    def _collected(self) -> CoordinatorSide:
        firsts = self.sent[self.protection.steps.first.name]
        return self.protocol.collect(self.terms, firsts, self.spec, self.plan)


def _people(count: int) -> tuple[Identity, ...]:
    return tuple(sorted((Identity.create() for _ in range(count)), key=lambda one: one.client_id))


def _terms(
    protection: Protection, people: Sequence[Identity], number: int, *, cell: bool
) -> RoundTerms:
    partition = partition_of((who.client_id for who in people), len(people)) if cell else None
    roster = Roster(
        federation="conformance",
        epoch=1,
        members=tuple(person.public for person in people),
        minimum_summands=MINIMUM,
        protection=protection.name,
        protection_fingerprint=protection.chosen.fingerprint(),
        context_sha256=bytes(32),
        secrets_sha256=bytes(32),
        authority_key=bytes(32),
        ca_sha256=bytes(32),
        partition=partition or Partition(),
    )
    return RoundTerms(
        federation="conformance",
        run="run",
        round=RoundId(number),
        seed=7,
        kind="train",
        base_round=RoundId(0),
        base_state=bytes(range(32)),
        catalogue_fingerprint="c",
        plan_fingerprint="p",
        roster=roster,
        minimum_summands=MINIMUM,
    )


def another_round(terms: RoundTerms) -> RoundTerms:
    """Return the terms of the round after."""
    return replace(terms, round=RoundId(terms.round + 1))
