"""What a client knows of its federation after enrolment, and what it accepts as said in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Plan
from fedrec.data import Catalogue
from fedrec.errors import (
    BadSignature,
    CatalogueMismatch,
    MalformedUpdate,
    PlanMismatch,
    RefusedError,
    VersionMismatch,
)
from fedrec.identity.epoch_secrets import EpochSecrets
from fedrec.identity.identity import Identity
from fedrec.identity.public import verify
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.protection import PROTECTIONS, Accumulator, Member, Protection
from fedrec.training.layout import Layout
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    RevealStatement,
    RoundKind,
    UploadHeader,
    manifest_digest,
)
from fedrec_client.round_seal import RoundSeal

__all__ = ["FEWEST_SUMMANDS", "Membership", "check_protocol"]

FEWEST_SUMMANDS = 3
"""Sums of fewer clients are never opened under encryption, whatever a roster says."""
VOUCHERS = 2
"""So many key holders must say the same about a published round."""


def check_protocol(version: str) -> None:
    """Refuse a peer of another major version.

    Raises:
        VersionMismatch: naming both versions.
    """
    if version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise VersionMismatch(
            f"The peer speaks protocol {version!r}, this fedrec {PROTOCOL_VERSION}.",
            remedy="Install the same fedrec on both sides.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One client's place in one run and key epoch; everything in it was checked.

    Attributes:
        run: the run's id.
        plan_fingerprint: names the plan in every signature.
        context: the protection's keyless context.
        protection: adds up messages of `layout`'s vectors.
        member: protects this client's vector, and holds the key that reveals sums.
    """

    identity: Identity
    run: str
    plan: Plan
    plan_fingerprint: str
    catalogue: Catalogue
    catalogue_fingerprint: str
    roster: Roster
    secrets: EpochSecrets
    context: bytes
    protection: Protection
    member: Member
    layout: Layout

    @property
    def client_id(self) -> ClientId:
        """This client's id."""
        return self.identity.client_id

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.plan.federation.name

    @property
    def epoch(self) -> int:
        """The key epoch."""
        return self.roster.epoch

    @property
    def is_encrypted(self) -> bool:
        """Whether only key holders can read the rounds' sums."""
        return self.protection.needs_reveal

    @property
    def minimum_summands(self) -> int:
        """The fewest distinct clients of a sum that may be opened or believed.

        The plan counts, too: its minima are what this client agreed to when it enrolled.
        """
        rounds = self.plan.rounds
        if not self.is_encrypted:
            return rounds.minimum_clients
        return max(
            FEWEST_SUMMANDS,
            self.roster.minimum_summands,
            rounds.minimum_summands,
            rounds.minimum_clients,
        )

    def seal_of(self, round_id: RoundId, kind: RoundKind) -> RoundSeal:
        """Return what seals and tags the results of a round."""
        return RoundSeal(
            group_key=self.secrets.group_key,
            federation=self.federation,
            run=self.run,
            epoch=self.epoch,
            round=round_id,
            kind=kind,
        )

    def accumulator(self) -> Accumulator:
        """Return an empty sum of this epoch's messages."""
        return self.protection.accumulator(self.context)

    def pack(self, aggregate: NDArray[np.int64]) -> bytes:
        """Return an aggregate as the plain bytes that are sealed and published."""
        codec, context = self._codec()
        packed = codec.accumulator(context)
        packed.add(codec.member(context, b"none").protect(aggregate))
        return packed.finish()

    def unpack(self, blob: bytes, n_summands: int) -> NDArray[np.int64]:
        """Return the aggregate that `pack`, or a coordinator without encryption, packed.

        Raises:
            MalformedUpdate: another length, or values out of bounds.
            RevealRefused: another number of summands.
        """
        codec, context = self._codec()
        return codec.member(context, b"none").reveal(blob, n_summands)

    def _codec(self) -> tuple[Protection, bytes]:
        plain = PROTECTIONS["none"]
        spec = self.layout.vector_spec
        codec = plain(spec, plain.plan(spec))
        context, _ = codec.generate()
        return codec, context

    def header_for(
        self, round_id: RoundId, kind: RoundKind, base_round: RoundId, payload: bytes
    ) -> UploadHeader:
        """Return the signed header of this client's update of a round."""
        unsigned = UploadHeader(
            protocol_version=PROTOCOL_VERSION,
            federation=self.federation,
            run=self.run,
            round=round_id,
            kind=kind,
            base_round=base_round,
            epoch=self.epoch,
            client_id=self.client_id,
            catalogue_fingerprint=self.catalogue_fingerprint,
            plan_fingerprint=self.plan_fingerprint,
            length=len(payload),
            digest=Blob.of(payload).digest,
        )
        return replace(unsigned, signature=self.identity.sign(unsigned.statement()))

    def sign_statement(self, statement: RevealStatement) -> RevealStatement:
        """Return the statement with this client's signature."""
        return replace(statement, signature=self.identity.sign(statement.statement()))

    def check_contributions(
        self,
        round_id: RoundId,
        kind: RoundKind,
        base_round: RoundId,
        contributions: tuple[UploadHeader, ...],
    ) -> None:
        """Check that a round's contributions are enough signed updates of distinct members.

        All of them must be for the same kind of round from the same model: a client that was
        told to measure among clients that train would not hide what they send.

        Raises:
            RefusedError: too few, too many, one client twice, or about another round, run,
                epoch, kind or base.
            NotInRoster: by somebody else.
            BadSignature: not signed by its author.
            ProtocolError: by another catalogue or plan, or of another length.
        """
        found = len(contributions)
        if found < self.minimum_summands:
            raise RefusedError(
                f"Round {round_id} has {found} contributions, expected at least "
                f"{self.minimum_summands}."
            )
        if self.is_encrypted and found > self.plan.rounds.recompute_limit:
            raise RefusedError(
                f"Round {round_id} has {found} contributions, expected at most "
                f"{self.plan.rounds.recompute_limit} (recompute_limit)."
            )
        if len({header.client_id for header in contributions}) < found:
            raise RefusedError(f"Round {round_id} lists a client twice.")
        for header in contributions:
            self._check_header(round_id, kind, base_round, header)

    def _check_header(
        self, round_id: RoundId, kind: RoundKind, base_round: RoundId, header: UploadHeader
    ) -> None:
        check_protocol(header.protocol_version)
        member = self.roster.member(header.client_id)
        author = header.client_id[:16]
        if header.catalogue_fingerprint != self.catalogue_fingerprint:
            raise CatalogueMismatch(f"{author} contributed by another catalogue.")
        if header.plan_fingerprint != self.plan_fingerprint:
            raise PlanMismatch(f"{author} contributed under another plan.")
        about = (header.federation, header.run, header.round, header.epoch)
        if about != (self.federation, self.run, round_id, self.epoch):
            raise RefusedError(
                f"A contribution by {author} is about {about}, expected "
                f"{(self.federation, self.run, round_id, self.epoch)}.",
                remedy="Somebody replays a contribution; tell the data owners.",
            )
        if (header.kind, header.base_round) != (kind, base_round):
            raise RefusedError(
                f"{author} contributed to a round of kind {header.kind} from version "
                f"{header.base_round}, expected kind {kind} from version {base_round}.",
                remedy="The coordinator told clients different things about round "
                f"{round_id}; tell the data owners.",
            )
        expected = self.protection.chosen.message_bytes
        if header.length != expected:
            raise MalformedUpdate(f"{author} announces {header.length} bytes, expected {expected}.")
        verify(member.signing_key, header.statement(), header.signature)

    def check_statements(
        self,
        round_id: RoundId,
        statements: tuple[RevealStatement, ...],
        *,
        vouchers: int = VOUCHERS,
    ) -> RevealStatement:
        """Check that enough distinct members signed the same about a round, and return it.

        Raises:
            RefusedError: too few of them, or they differ, or they are about something else.
            NotInRoster: by somebody else.
            BadSignature: not signed by its author.
        """
        signers = {statement.client_id for statement in statements}
        if len(signers) < vouchers:
            raise BadSignature(
                f"Round {round_id} is vouched for by {len(signers)} distinct clients, expected "
                f"{vouchers}."
            )
        for statement in statements:
            member = self.roster.member(statement.client_id)
            about = (statement.federation, statement.run, statement.round, statement.epoch)
            if about != (self.federation, self.run, round_id, self.epoch):
                raise RefusedError(
                    f"A statement is about {about}, expected "
                    f"{(self.federation, self.run, round_id, self.epoch)}."
                )
            verify(member.signing_key, statement.statement(), statement.signature)
            if statement.content() != statements[0].content():
                raise RefusedError(f"The statements about round {round_id} contradict each other.")
        return statements[0]

    def manifest_digest(self, round_id: RoundId, contributions: tuple[UploadHeader, ...]) -> bytes:
        """Return the digest that names a round's contributions."""
        return manifest_digest(self.run, round_id, contributions)
