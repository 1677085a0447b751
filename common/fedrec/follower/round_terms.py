"""One round as all its members must have received it: its terms, its vector and its seal."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import RefusedError, SplitView
from fedrec.identity.sealing import keyed_tag, seal_same, unseal
from fedrec.identity.secret import Secret
from fedrec.ids import RoundId, canonical
from fedrec.plan.layout import Layout
from fedrec.protection import Accumulator, Member, NoProtection, Protection
from fedrec.protection.protection import in_one_step, made_together
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import RoundKind, UploadHeader

_REMEDY = "The coordinator announced different rounds to different clients. Tell the data owners."


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedRound:
    """A round that the coordinator announced, completed from this client's model.

    Attributes:
        base_round: the published round whose model is trained.
        base_state: the digest of this client's copy of that model.
        rows: the item rows that the round's vectors cover.
        key_list: the digest of the list of keys under masks, else empty.
    """

    round: RoundId
    kind: RoundKind
    base_round: RoundId
    base_state: bytes
    rows: StatedRows
    key_list: bytes = b""

    def check_header(self, header: UploadHeader) -> None:
        """Check that a contributor received the same announcement and has the same model.

        Raises:
            RefusedError: a value differs. The error names it.
        """
        author = header.client_id[:16]
        if (header.kind, header.base_round) != (self.kind, self.base_round):
            raise RefusedError(
                f"{author} contributed to a round of kind {header.kind} from version "
                f"{header.base_round}, not of kind {self.kind} from version {self.base_round}.",
                remedy=_REMEDY,
            )
        if header.base_state != self.base_state:
            raise RefusedError(
                f"{author} starts round {self.round} from a different model of version "
                f"{self.base_round} than this client.",
                remedy=_REMEDY,
            )
        if header.rows != self.rows:
            raise RefusedError(
                f"{author} contributed {header.n_rows} item rows to round {self.round}. They "
                f"differ from this client's {self.rows.n_rows} rows.",
                remedy=_REMEDY,
            )
        if header.key_list != self.key_list:
            raise SplitView(
                f"{author} contributed to round {self.round} with another list of keys.",
                remedy=_REMEDY,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVector:
    """The objects that a member needs for one round's vectors.

    Attributes:
        layout: the position of each part.
        protection: adds up protected vectors.
        half: protects this client's vector, and opens sums if it has the key. None if the clients
            of a round make messages together.
        context: the protection's context, without a secret key.
    """

    layout: Layout
    protection: Protection
    half: Member | None
    context: bytes

    @property
    def message_bytes(self) -> int:
        """The length of every protected vector."""
        return self.protection.chosen.message_bytes

    @property
    def member(self) -> Member:
        """The half that protects this client's vector alone, and opens sums if it has the key.

        Raises:
            RoundError: the clients of a round make messages together.
        """
        if self.half is None:
            raise made_together(self.protection)
        return self.half

    def accumulator(self) -> Accumulator:
        """Return an empty sum of this epoch's messages.

        Raises:
            RoundError: the clients of a round sum messages together.
        """
        return in_one_step(self.protection).accumulator(self.context)

    def pack(self, aggregate: NDArray[np.int64]) -> bytes:
        """Return an aggregate as the plain bytes to seal and publish."""
        codec, context = self._codec()
        packed = codec.accumulator(context)
        packed.add(codec.member(context).protect(aggregate))
        return packed.finish()

    def unpack(self, blob: bytes, n_summands: int) -> NDArray[np.int64]:
        """Return the aggregate that `pack`, or a coordinator without encryption, packed.

        Raises:
            MalformedUpdate: the length is wrong, or values are out of bounds.
            RevealRefused: the number of summands is wrong.
        """
        codec, context = self._codec()
        return codec.member(context).reveal(blob, n_summands)

    def _codec(self) -> tuple[NoProtection, bytes]:
        spec = self.layout.vector_spec
        codec = NoProtection(spec, NoProtection.plan(spec))
        context, _ = codec.generate()
        return codec, context


_AGGREGATE = "fedrec aggregate v1"
_SNAPSHOT = "fedrec snapshot v1"
_STATE = "fedrec state v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSeal(Secret):
    """Bind sealed bytes and tags to a federation, run, epoch and round."""

    group_key: bytes = field(repr=False)
    federation: str
    run: str
    epoch: int
    round: RoundId

    def _context(self) -> bytes:
        return canonical("fedrec round v1", self.federation, self.run, self.epoch, self.round)

    def seal_aggregate(self, packed: bytes) -> bytes:
        """Seal a packed aggregate. Every call gives the same bytes."""
        return seal_same(self.group_key, _AGGREGATE, self._context(), packed)

    def unseal_aggregate(self, sealed: bytes) -> bytes:
        """Open an aggregate that `seal_aggregate` sealed.

        Raises:
            BadSignature: the bytes were sealed for another round, or they were changed.
        """
        return unseal(self.group_key, _AGGREGATE, self._context(), sealed)

    def seal_snapshot(self, shared: bytes) -> bytes:
        """Seal a snapshot of the shared model. All clients with the model get the same bytes."""
        return seal_same(self.group_key, _SNAPSHOT, self._context(), shared)

    def unseal_snapshot(self, sealed: bytes) -> bytes:
        """Open a snapshot that `seal_snapshot` sealed.

        Raises:
            BadSignature: the bytes were sealed for another round, or they were changed.
        """
        return unseal(self.group_key, _SNAPSHOT, self._context(), sealed)

    def state_tag(self, shared: bytes) -> bytes:
        """Return the keyed digest of the canonical bytes of the model after the round."""
        return keyed_tag(self.group_key, _STATE, canonical(_STATE, self._context(), shared))
