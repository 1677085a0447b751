"""The two halves of Paillier for messages of entries: see `entries` for what travels."""

from __future__ import annotations

import numpy as np
from gmpy2 import mpz

from fedrec.errors import KeysError, RevealRefused, RoundError, WrongTags
from fedrec.protection.entries import EntryLayout
from fedrec.protection.envelope import Envelope
from fedrec.protection.paillier_key import (
    PaillierEncryptor,
    PaillierPublicKey,
    PaillierSecretKey,
)
from fedrec.protection.plan import INDEX_BYTES
from fedrec.protection.protection import (
    Accumulator,
    Member,
    Protection,
    check_count,
    encrypts_only,
)
from fedrec.protection.slot_widths import N_TAGS, TAG_MODULUS
from fedrec.protection.tags import Tagging, check_tags
from fedrec.protection.vector import Integers, VectorSpec

__all__ = ["EntryAccumulator", "EntryMember", "refreshed_entries"]


class EntryAccumulator(Accumulator):
    """Multiplies ciphertexts of the same index, which adds what they carry.

    Indices that nobody sent are in no sum. Like the product, the list of indices does not depend
    on the order of the messages.
    """

    def __init__(self, envelope: Envelope, key: PaillierPublicKey, layout: EntryLayout) -> None:
        self._envelope = envelope
        self._key = key
        self._layout = layout
        self._limit = key.n_squared
        self._entries: dict[int, mpz] = {}
        self._tail: list[mpz] = []
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
        split = self._layout.n_entries * INDEX_BYTES
        index = self._layout.read_indices(body[:split])
        found = self._key.read(body[split:])
        # Everything was checked: from here on nothing fails.
        for place, ciphertext in zip(index, found, strict=False):
            before = self._entries.get(place)
            together = ciphertext if before is None else before * ciphertext % self._limit
            self._entries[place] = together
        tail = found[len(index) :]
        if self._count:
            pairs = zip(self._tail, tail, strict=True)
            tail = [product * ciphertext % self._limit for product, ciphertext in pairs]
        self._tail = tail
        self._count += 1

    def finish(self) -> bytes:
        """Return the sum; see `Accumulator.finish`."""
        if not self._count:
            raise RoundError("A sum of no messages does not exist.")
        index = sorted(self._entries)
        blocks = [self._entries[place] for place in index] + self._tail
        return self._envelope.close_sum(_body(self._key, index, blocks), self._count)


class EntryMember(Member):
    """Encrypts the entries of vectors and, with the secret key, reveals sums of them."""

    def __init__(
        self,
        spec: VectorSpec,
        envelope: Envelope,
        key: PaillierSecretKey | PaillierEncryptor,
        tag_key: bytes,
    ) -> None:
        self._spec = spec
        self._envelope = envelope
        self._tag_key = tag_key
        self._layout = EntryLayout(spec, int(key.public.n.bit_length()))
        self._key: PaillierSecretKey | PaillierEncryptor | None = key
        self._tagging: Tagging | None = None
        if spec.tagged:
            self._tagging = Tagging(tag_key, TAG_MODULUS, spec.length, n_tags=N_TAGS)

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Return the message of a vector; see `Member.protect`."""
        key = self._open_key()
        values = self._spec.validated(vector)
        tags = None
        if self._tagging is not None:
            made = self._tagging.of_message(values[None], name)
            tags = np.mod(made[0], TAG_MODULUS).tolist()
        index, blocks = self._layout.pack(values, tags)
        body = _body(key.public, index.tolist(), [key.encrypt(block) for block in blocks])
        return self._envelope.close_message(body)

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Return the exact sum, zero where no message had an entry; see `Member.reveal`."""
        key = self._open_key()
        if isinstance(key, PaillierEncryptor):
            raise encrypts_only()
        found, body = self._envelope.open_sum(total)
        check_count(found, n_summands, self._envelope.max_summands)
        index, ciphertexts = _read(self._layout, key.public, body, n_summands)
        blocks = [key.decrypt(ciphertext) for ciphertext in ciphertexts]
        try:
            values, tags = self._layout.unpack(index, blocks, key.public.n, n_summands)
        except RevealRefused as error:
            if names is None:
                raise
            # What cannot even be read cannot have the right tags.
            raise WrongTags(error.message, remedy=error.remedy) from error
        if names is not None:
            check_tags(self._tagging, values[None], tags, names, n_summands)
        return values

    def over(self, protection: Protection) -> Member:
        """Return this half for another vector; see `Member.over`."""
        return EntryMember(
            protection.spec,
            self._envelope.over(protection.chosen),
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


def refreshed_entries(
    envelope: Envelope, key: PaillierPublicKey, layout: EntryLayout, total: bytes
) -> bytes:
    """Return the same sum with fresh randomness; see `Protection.refreshed`."""
    count, body = envelope.open_sum(total)
    index, found = _read(layout, key, body, count)
    limit = key.n_squared
    pairs = zip(found, key.residues(), strict=False)
    blocks = [ciphertext * residue % limit for ciphertext, residue in pairs]
    return envelope.close_sum(_body(key, index, blocks), count)


def _read(
    layout: EntryLayout, key: PaillierPublicKey, body: memoryview, n_summands: int
) -> tuple[list[int], list[mpz]]:
    """Return a sum's indices and ciphertexts, all of it checked."""
    split = layout.entries_of(body, key.ciphertext_bytes, n_summands) * INDEX_BYTES
    return layout.read_indices(body[:split]), key.read(body[split:])


def _body(key: PaillierPublicKey, index: list[int], blocks: list[mpz]) -> bytes:
    return np.array(index, dtype="<u4").tobytes() + key.write(blocks)
