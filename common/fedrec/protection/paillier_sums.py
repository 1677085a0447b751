"""The two halves of the Paillier protection: what members make, and what the coordinator adds."""

from __future__ import annotations

import numpy as np
from gmpy2 import mpz

from fedrec.errors import KeysError, RevealRefused, RoundError, WrongTags
from fedrec.protection.envelope import Envelope
from fedrec.protection.paillier_key import (
    PaillierEncryptor,
    PaillierPublicKey,
    PaillierSecretKey,
)
from fedrec.protection.protection import (
    Accumulator,
    Member,
    Protection,
    check_count,
    encrypts_only,
)
from fedrec.protection.slot_widths import TAG_MODULUS, SlotWidths
from fedrec.protection.slots import SlotLayout
from fedrec.protection.tags import Tagging, check_tags
from fedrec.protection.vector import Integers, VectorSpec

__all__ = ["PaillierAccumulator", "PaillierMember", "refreshed"]


class PaillierAccumulator(Accumulator):
    """Multiplies ciphertexts modulo n^2, which adds what they carry.

    The product does not depend on the order of the messages, and each sum has one encoding, so
    that key holders who multiply the same contributions get the same bytes.
    """

    def __init__(self, envelope: Envelope, key: PaillierPublicKey) -> None:
        self._envelope = envelope
        self._key = key
        self._limit = key.n_squared
        self._products: list[mpz] = []
        self._count = 0

    @property
    def count(self) -> int:
        """How many messages were added."""
        return self._count

    def add(self, message: bytes) -> None:
        """Add one message after checking all of it; see `Accumulator.add`."""
        body = self._envelope.open_message(message)
        if self._count >= self._envelope.max_summands:
            raise RoundError(
                f"The plan allows {self._envelope.max_summands} messages in a sum, not one more."
            )
        found = self._key.read(body)
        if self._count:
            pairs = zip(self._products, found, strict=True)
            found = [product * ciphertext % self._limit for product, ciphertext in pairs]
        self._products = found
        self._count += 1

    def finish(self) -> bytes:
        """Return the sum; see `Accumulator.finish`."""
        if not self._count:
            raise RoundError("A sum of no messages does not exist.")
        return self._envelope.close_sum(self._key.write(self._products), self._count)


class PaillierMember(Member):
    """Encrypts vectors and, with the secret key, reveals sums, slot by slot."""

    def __init__(
        self,
        spec: VectorSpec,
        envelope: Envelope,
        widths: SlotWidths,
        key: PaillierSecretKey | PaillierEncryptor,
        tag_key: bytes,
    ) -> None:
        self._spec = spec
        self._envelope = envelope
        self._widths = widths
        self._tag_key = tag_key
        self._layout = SlotLayout(spec, widths)
        self._key: PaillierSecretKey | PaillierEncryptor | None = key
        self._tagging: Tagging | None = None
        if widths.n_tags:
            self._tagging = Tagging(
                tag_key, TAG_MODULUS, self._layout.most_values, n_tags=widths.n_tags
            )

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Return the message of a vector; see `Member.protect`."""
        key = self._open_key()
        values = self._spec.validated(vector)
        tags = None
        if self._tagging is not None:
            made = self._tagging.of_message(self._layout.rows(values), name)
            tags = np.mod(made, TAG_MODULUS).tolist()
        blocks = self._layout.pack(values, tags)
        return self._envelope.close_message(
            key.public.write([key.encrypt(block) for block in blocks])
        )

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Return the exact sum; see `Member.reveal`."""
        key = self._open_key()
        if isinstance(key, PaillierEncryptor):
            raise encrypts_only()
        found, body = self._envelope.open_sum(total)
        check_count(found, n_summands, self._envelope.max_summands)
        blocks = [key.decrypt(ciphertext) for ciphertext in key.public.read(body)]
        try:
            values, tags = self._layout.unpack(blocks, key.public.n, n_summands)
        except RevealRefused as error:
            if names is None:
                raise
            # What cannot even be read cannot have the right tags.
            raise WrongTags(error.message, remedy=error.remedy) from error
        if names is not None:
            check_tags(self._tagging, self._layout.rows(values), tags, names, n_summands)
        return values

    def over(self, protection: Protection) -> Member:
        """Return this half for another vector; see `Member.over`."""
        return PaillierMember(
            protection.spec,
            self._envelope.over(protection.chosen),
            self._widths,
            self._open_key(),
            self._tag_key,
        )

    def close(self) -> None:
        """Forget the key."""
        self._key = self._tagging = None
        self._tag_key = b""

    def _open_key(self) -> PaillierSecretKey | PaillierEncryptor:
        if self._key is None:
            raise KeysError("This member was closed.", remedy="Make another from its secret.")
        return self._key


def refreshed(envelope: Envelope, key: PaillierPublicKey, total: bytes) -> bytes:
    """Return the same sum with fresh randomness; see `Protection.refreshed`."""
    count, body = envelope.open_sum(total)
    pairs = zip(key.read(body), key.residues(), strict=False)
    limit = key.n_squared
    return envelope.close_sum(
        key.write([ciphertext * residue % limit for ciphertext, residue in pairs]), count
    )
