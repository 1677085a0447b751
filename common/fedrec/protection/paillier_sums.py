"""The two halves of the Paillier protection: members encrypt, and the coordinator adds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
from gmpy2 import mpz

from fedrec.errors import KeysError, RevealRefused, WrongTags
from fedrec.protection.packing import EntryLayout, SlotLayout
from fedrec.protection.paillier_key import (
    PaillierEncryptor,
    PaillierPublicKey,
    PaillierSecretKey,
)
from fedrec.protection.protection import (
    EnvelopedSum,
    Member,
    Protection,
    check_count,
    encrypts_only,
)
from fedrec.protection.protection_plan import INDEX_BYTES, Envelope
from fedrec.protection.slot_widths import TAG_MODULUS, SlotWidths
from fedrec.protection.tags import Tagging, check_tags
from fedrec.protection.vector import Integers, VectorSpec


class PaillierAccumulator(EnvelopedSum):
    """Multiply ciphertexts modulo n^2, which adds their values.

    The product doesn't depend on the order of the messages, and each sum has one encoding. Key
    holders that multiply the same contributions therefore get the same bytes. Entries are
    multiplied with those of the same index. An index that no client sent isn't in the sum. The list
    of indices doesn't depend on the order of the messages either.

    Args:
        layout: the layout of messages of entries, or None if every ciphertext has a fixed place.
    """

    def __init__(
        self, envelope: Envelope, key: PaillierPublicKey, layout: EntryLayout | None = None
    ) -> None:
        super().__init__(envelope)
        self._key, self._layout = key, layout
        self._limit = key.n_squared
        self._entries: dict[int, mpz] = {}
        self._tail: list[mpz] = []

    def add_from(self, file: BinaryIO) -> None:
        """Add a file's message after checking all of it (see `Accumulator.add`)."""
        self._check(file)
        index, found = _read(self._layout, self._key, memoryview(file.read()), 1)
        # Everything was checked, so nothing fails from here on.
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

    def _parts(self) -> Iterable[bytes]:
        index = sorted(self._entries)
        return (_body(self._key, index, [self._entries[place] for place in index] + self._tail),)

    def refreshed(self, total: bytes) -> bytes:
        """Return the same sum with fresh randomness (see `Accumulator.refreshed`)."""
        count, body = self._envelope.open_sum(total)
        index, found = _read(self._layout, self._key, body, count)
        pairs = zip(found, self._key.residues(), strict=False)
        blocks = [ciphertext * residue % self._limit for ciphertext, residue in pairs]
        return self._envelope.close_sum(_body(self._key, index, blocks), count)


class PaillierMember(Member):
    """Encrypt vectors and, with the secret key, reveal sums.

    Args:
        widths: the widths of the slots, or None for messages of entries.
        key: the secret key, or the half that only encrypts.
        tag_key: the key of the tags, if the vector has tags.
    """

    def __init__(
        self,
        spec: VectorSpec,
        envelope: Envelope,
        widths: SlotWidths | None,
        key: PaillierSecretKey | PaillierEncryptor,
        tag_key: bytes,
    ) -> None:
        self._spec = spec
        self._envelope = envelope
        self._widths = widths
        self._tag_key = tag_key
        self._layout: EntryLayout | SlotLayout
        if widths is None:
            self._layout = EntryLayout(spec, int(key.public.n.bit_length()))
        else:
            self._layout = SlotLayout(spec, widths)
        self._key: PaillierSecretKey | PaillierEncryptor | None = key
        self._tagging: Tagging | None = None
        if self._layout.n_tags:
            self._tagging = Tagging(
                tag_key, TAG_MODULUS, self._layout.most_values, n_tags=self._layout.n_tags
            )

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Return the message of a vector (see `Member.protect`)."""
        key = self._open_key()
        values = self._spec.validated(vector)
        tags = None
        if self._tagging is not None:
            made = self._tagging.of_message(self._layout.rows(values), name)
            tags = np.mod(made, TAG_MODULUS).tolist()
        index, blocks = self._layout.of_message(values, tags)
        body = _body(key.public, index, [key.encrypt(block) for block in blocks])
        return self._envelope.close_message(body)

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Return the exact sum, zero if no message had an entry (see `Member.reveal`)."""
        key = self._open_key()
        if isinstance(key, PaillierEncryptor):
            raise encrypts_only()
        found, body = self._envelope.open_sum(total)
        check_count(found, n_summands, self._envelope.max_summands)
        index, ciphertexts = _read(self._layout, key.public, body, n_summands)
        blocks = [key.decrypt(ciphertext) for ciphertext in ciphertexts]
        try:
            values, tags = self._layout.of_sum(index, blocks, key.public.n, n_summands)
        except RevealRefused as error:
            # A sum that can't be read can't have the right tags.
            if names is None:
                raise
            raise WrongTags(error.message, remedy=error.remedy) from error
        if names is not None:
            check_tags(self._tagging, self._layout.rows(values), tags, names, n_summands)
        return values

    def over(self, protection: Protection) -> Member:
        """Return this half for another vector (see `Member.over`)."""
        return PaillierMember(
            protection.spec,
            self._envelope.over(protection.chosen),
            self._widths,
            self._open_key(),
            self._tag_key,
        )

    def close(self) -> None:
        """Delete the key."""
        self._key = self._tagging = None
        self._tag_key = b""

    def _open_key(self) -> PaillierSecretKey | PaillierEncryptor:
        if self._key is None:
            raise KeysError("This member was closed.", remedy="Make another from its secret.")
        return self._key


def _read(
    layout: EntryLayout | SlotLayout | None,
    key: PaillierPublicKey,
    body: memoryview,
    n_summands: int,
) -> tuple[list[int], list[mpz]]:
    """Return the indices and ciphertexts of a message or a sum after checking all of it."""
    if not isinstance(layout, EntryLayout):
        return [], key.read(body)
    split = layout.entries_of(body, key.ciphertext_bytes, n_summands) * INDEX_BYTES
    return layout.read_indices(body[:split]), key.read(body[split:])


def _body(key: PaillierPublicKey, index: list[int], blocks: list[mpz]) -> bytes:
    return np.array(index, dtype="<u4").tobytes() + key.write(blocks)
