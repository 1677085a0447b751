"""What a participant keeps from one step to the next, as values and as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from fedrec.errors import KeysError
from fedrec.identity.document import Document, JsonValue, encode_bytes, write_document
from fedrec.identity.secret import Secret
from fedrec.ids import ClientId
from fedrec.protection.masks.keys import KeyAdvertisement, KeyList, RoundKeys
from fedrec.protection.masks.shamir import SHARE_BYTES

__all__ = ["ParticipantState", "Phase"]

KIND = "fedrec mask participant"
Phase = Literal["advertised", "shared", "masked", "signed"]
_KEY_LIST_BYTES = 32 + 32 + 32 + 64


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class ParticipantState(Secret):
    """A participant's memory; secrets are emptied as soon as no later step needs them.

    Attributes:
        phase: the last step that was taken.
        terms: digest of the round's terms.
        keys: private keys; empty bytes once the vector is masked.
        key_list: all participants; none before the shares were made.
        holders: positions of those who hold this client's shares.
        self_seed: seed of the self mask; empty once the vector is masked.
        shared: who sent shares, packed; empty before the vector was masked.
        held: shares by owner: (of the self mask's seed, of the mask key). In a complete graph also
            its own, from the start; those of others once the vector is masked.
        survivors: the set that was signed, packed; empty before. Never changed afterwards.
    """

    phase: Phase
    terms: bytes
    keys: RoundKeys
    key_list: KeyList = field(default_factory=lambda: KeyList(()))
    holders: tuple[int, ...] = ()
    self_seed: bytes = b""
    shared: bytes = b""
    held: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    survivors: bytes = b""

    def to_bytes(self) -> bytes:
        """Return everything, secrets included, for a file that only its owner can read."""
        held = [owner.to_bytes(4, "big") + b"".join(shares) for owner, shares in self.held.items()]
        fields: dict[str, JsonValue] = {
            "phase": self.phase,
            "terms": encode_bytes(self.terms),
            "mask": encode_bytes(self.keys.mask),
            "share": encode_bytes(self.keys.share),
            "key_list": _text(_pack_keys(one) for one in self.key_list.keys),
            "holders": _text(holder.to_bytes(4, "big") for holder in self.holders),
            "self_seed": encode_bytes(self.self_seed),
            "shared": encode_bytes(self.shared),
            "held": _text(held),
            "survivors": encode_bytes(self.survivors),
        }
        return write_document(KIND, fields)

    @classmethod
    def from_bytes(cls, raw: bytes) -> ParticipantState:
        """Read what `to_bytes` wrote.

        Raises:
            KeysError: when it is damaged.
        """
        document = Document.parse(raw, KIND, "The participant's state")
        phase = document.text("phase")
        if phase not in get_args(Phase):
            raise document.problem(f"is in the unknown phase {phase!r}")
        held = {}
        for row in _rows(document, "held", 4 + 2 * SHARE_BYTES):
            shares = row[4:]
            held[int.from_bytes(row[:4], "big")] = (shares[:SHARE_BYTES], shares[SHARE_BYTES:])
        state = cls(
            phase=cast(Phase, phase),
            terms=document.raw("terms", length=32),
            keys=RoundKeys(mask=document.raw("mask"), share=document.raw("share")),
            key_list=KeyList.of(
                _unpack_keys(row) for row in _rows(document, "key_list", _KEY_LIST_BYTES)
            ),
            holders=tuple(int.from_bytes(row, "big") for row in _rows(document, "holders", 4)),
            self_seed=document.raw("self_seed"),
            shared=document.raw("shared"),
            held=held,
            survivors=document.raw("survivors"),
        )
        document.finish()
        return state


def _pack_keys(one: KeyAdvertisement) -> bytes:
    return bytes.fromhex(one.client_id) + one.mask_key + one.share_key + one.signature


def _unpack_keys(row: bytes) -> KeyAdvertisement:
    return KeyAdvertisement(
        client_id=ClientId(row[:32].hex()),
        mask_key=row[32:64],
        share_key=row[64:96],
        signature=row[96:],
    )


def _text(rows: Iterable[bytes]) -> str:
    return encode_bytes(b"".join(rows))


def _rows(document: Document, name: str, length: int) -> list[bytes]:
    raw = document.raw(name)
    if len(raw) % length:
        raise KeysError(f"The participant's state is damaged: {name} is cut short.")
    return [raw[start : start + length] for start in range(0, len(raw), length)]
