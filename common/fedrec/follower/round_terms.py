"""One round as its members must have been told it: its terms, its vector, its seal."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import RefusedError, SplitView
from fedrec.identity.sealing import keyed_tag, seal_same, unseal
from fedrec.identity.secret import Secret
from fedrec.ids import RoundId, canonical
from fedrec.plan.layout import Layout
from fedrec.protection import PROTECTIONS, Accumulator, Member, Protection
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import RoundKind, UploadHeader

_REMEDY = "The coordinator told clients different things about a round; tell the data owners."


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedRound:
    """What the coordinator says about a round, and what follows from this client's model.

    Attributes:
        base_round: the published round whose model is trained.
        base_state: digest of that model, as this client has it.
        rows: the item rows that the round's vectors cover.
        key_list: under masks the digest of the list of keys; else empty.
    """

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    base_state: bytes
    rows: StatedRows
    key_list: bytes = b""

    def check_header(self, header: UploadHeader) -> None:
        """Check that a contributor was told the same, and has the same model.

        Raises:
            RefusedError: naming what differs.
        """
        author = header.client_id[:16]
        if (header.kind, header.base_round) != (self.kind, self.base_round):
            raise RefusedError(
                f"{author} contributed to a round of kind {header.kind} from version "
                f"{header.base_round}, expected kind {self.kind} from version {self.base_round}.",
                remedy=_REMEDY,
            )
        if header.base_state != self.base_state:
            raise RefusedError(
                f"{author} starts round {self.round} from another model of version "
                f"{self.base_round} than this client's.",
                remedy=_REMEDY,
            )
        if header.rows != self.rows:
            raise RefusedError(
                f"{author} contributed to round {self.round} over {header.n_rows} item rows, or "
                f"others than this client's {self.rows.n_rows}.",
                remedy=_REMEDY,
            )
        if header.key_list != self.key_list:
            raise SplitView(
                f"{author} contributed to round {self.round} for another list of keys.",
                remedy=_REMEDY,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVector:
    """What a member needs for one round's vectors.

    Attributes:
        layout: where each part stands.
        protection: adds up messages of such vectors.
        member: protects this client's vector, and reveals sums where it holds the key.
        context: the protection's keyless context.
    """

    layout: Layout
    protection: Protection
    member: Member
    context: bytes

    @property
    def message_bytes(self) -> int:
        """Length of every protected vector."""
        return self.protection.chosen.message_bytes

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
        plain, spec = PROTECTIONS["none"], self.layout.vector_spec
        codec = plain(spec, plain.plan(spec))
        context, _ = codec.generate()
        return codec, context


_AGGREGATE = "fedrec aggregate v1"
_SNAPSHOT = "fedrec snapshot v1"
_STATE = "fedrec state v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSeal(Secret):
    """Binds sealed bytes and tags to a federation, run, epoch and round."""

    group_key: bytes = field(repr=False)
    federation: str
    run: str
    epoch: int
    round: RoundId

    def _context(self) -> bytes:
        return canonical("fedrec round v1", self.federation, self.run, self.epoch, self.round)

    def seal_aggregate(self, packed: bytes) -> bytes:
        """Seal a packed aggregate; the same bytes at every try."""
        return seal_same(self.group_key, _AGGREGATE, self._context(), packed)

    def unseal_aggregate(self, sealed: bytes) -> bytes:
        """Open what `seal_aggregate` made.

        Raises:
            BadSignature: sealed for another round, or changed.
        """
        return unseal(self.group_key, _AGGREGATE, self._context(), sealed)

    def seal_snapshot(self, shared: bytes) -> bytes:
        """Seal a copy of the shared model; all who have it make the same bytes of it."""
        return seal_same(self.group_key, _SNAPSHOT, self._context(), shared)

    def unseal_snapshot(self, sealed: bytes) -> bytes:
        """Open what `seal_snapshot` made.

        Raises:
            BadSignature: sealed for another round, or changed.
        """
        return unseal(self.group_key, _SNAPSHOT, self._context(), sealed)

    def state_tag(self, shared: bytes) -> bytes:
        """Return the keyed digest of the canonical bytes of the model after the round."""
        return keyed_tag(self.group_key, _STATE, canonical(_STATE, self._context(), shared))
