"""Linear tags: they show that a sum is the sum of exactly the messages that were signed.

A key authority that adds up a round's contributions itself knows what it opens. Above
`rounds.recompute_limit` contributions that costs too much, and the coordinator's sum has to be
taken. So every block of a message carries tags of its slots m in slots of its own,

    tag = <w, m> + pad    (modulo the plain modulus, or another prime),

with secret weights w, the same for all messages, and a secret pad for each message and block. Tags
add up like the slots do: those of a sum of the messages i are right for its slots M just if they
are <w, M> plus the sum of the pads i. A party that knows neither weights nor pads cannot make a
block with right tags but by adding up exactly these messages, save for a chance of
(1/modulus)^n_tags: a sum without one of them, with one twice, with slots masked out, multiplied, or
made up, is noticed (Wegman and Carter, New hash functions, JCSS 22, 1981; the pad is used once, so
that many sums under the same weights tell nothing about them).

A refusal is one bit about a sum of somebody else's choice, and enough of them would tell about the
key. So a round is answered once, and refusals are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedrec.errors import KeysError, SettingsError, WrongTags
from fedrec.identity.secret import Secret
from fedrec.ids import canonical
from fedrec.protection.vector import VectorSpec

TAGS = 4
"""Tags of a block under BFV; with a modulus of 20 bits or more a forgery passes with 2^-80."""
KEY_BYTES = 32
UNIFORM_WORDS = 2
"""128 bits are reduced modulo the plain modulus, so that the result is as good as uniform."""
SMALL_MODULUS = 2**32

Words = NDArray[Any]


class Tagging(Secret):
    """Makes and checks the tags of one federation's blocks.

    Args:
        key: 32 secret bytes that all members have and the coordinator has not.
        modulus: the prime modulo which slots and tags add up.
        n_slots: slots of a block that are tagged.
        n_tags: tags of a block; a forgery passes with a chance of (1/modulus)^n_tags.
    """

    def __init__(self, key: bytes, modulus: int, n_slots: int, n_tags: int = TAGS) -> None:
        if len(key) != KEY_BYTES:
            raise KeysError(f"A tagging key has {KEY_BYTES} bytes, not {len(key)}.")
        self._key = key
        self._modulus = modulus
        self._n_slots = n_slots
        self._n_tags = n_tags
        # Products of two residues fit 64 bits, or else take Python's integers.
        self._kind: Any = np.uint64 if modulus <= SMALL_MODULUS else object

    def of_message(self, slots: NDArray[np.int64], name: bytes) -> NDArray[np.int64]:
        """Return the tags of one message, centred, shape (n_blocks, n_tags).

        Args:
            slots: shape (n_blocks, n_slots).
            name: says whose message it is and of which round; signed, and never used for a
                second message.
        """
        return self._whole((self._hashes(slots) + self._pads(name, len(slots))) % self._modulus)

    def are_right(
        self, slots: NDArray[np.int64], tags: NDArray[Any], names: Iterable[bytes]
    ) -> bool:
        """Tell whether slots and tags are the sum of exactly the messages of these names.

        Args:
            slots: revealed, shape (n_blocks, n_slots).
            tags: revealed beside them, shape (n_blocks, n_tags), any representatives.
        """
        expected = self._hashes(slots)
        for name in names:
            expected = (expected + self._pads(name, len(slots))) % self._modulus
        found = np.mod(tags.astype(object), self._modulus)
        return bool(np.array_equal(found, expected.astype(object)))

    @cached_property
    def _weights(self) -> Words:
        """Secret weights, shape (n_tags, n_slots)."""
        drawn = self._residues(b"weights", self._n_tags * self._n_slots)
        return drawn.reshape(self._n_tags, self._n_slots)

    def _hashes(self, slots: NDArray[np.int64]) -> Words:
        """Return <w, m> modulo the plain modulus, shape (n_blocks, n_tags)."""
        residues = np.mod(slots, self._modulus).astype(self._kind)
        columns = [(residues * row % self._modulus).sum(axis=1) for row in self._weights]
        hashes: Words = np.stack(columns, axis=1) % self._modulus
        return hashes

    def _pads(self, name: bytes, n_blocks: int) -> Words:
        drawn = self._residues(canonical("pads", name), n_blocks * self._n_tags)
        return drawn.reshape(n_blocks, self._n_tags)

    def _residues(self, purpose: bytes, count: int) -> Words:
        """Return uniform residues: an AES-256-CTR stream of its own key for each purpose."""
        info = canonical("fedrec sum tags v1", self._modulus, self._n_slots, purpose)
        key = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=b"", info=info).derive(self._key)
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * UNIFORM_WORDS * count)), dtype="<u8")
        high, low = words.reshape(count, UNIFORM_WORDS).T.astype(object)
        residues: Words = ((high * 2**64 + low) % self._modulus).astype(self._kind)
        return residues

    def _whole(self, residues: Words) -> NDArray[np.int64]:
        """Return residues as the centred integers that a block holds."""
        half = self._modulus // 2
        signed = residues.astype(np.int64)
        return np.where(signed > half, signed - self._modulus, signed)


def check_bounds(spec: VectorSpec, modulus: int) -> None:
    """Refuse values that tags do not bind: two sums that differ by the modulus have the same ones.

    Where no value reaches half the modulus, in size, its residue says which value it is.

    Args:
        spec: a tagged vector whose values are tagged as they are. Limbs fit their slots, which are
            residues of the modulus themselves.

    Raises:
        SettingsError: naming the segments and the settings.
    """
    wide = [segment for segment in spec.segments if 2 * segment.max_abs_sum >= modulus]
    if wide:
        names = ", ".join(f"{each.name} (up to {each.max_abs_sum})" for each in wide)
        raise SettingsError(
            f"The sums of {names} reach half of {modulus}, modulo which their tags are computed: "
            "tags do not tell apart what differs by as much.",
            remedy="Lower federation.maximum_users or update.fraction_bits, or ask at most "
            "rounds.recompute_limit clients in a round (rounds.cells_per_round).",
        )


def check_tags(
    tagging: Tagging | None,
    slots: NDArray[np.int64],
    tags: NDArray[Any],
    names: tuple[bytes, ...],
    n_summands: int,
) -> None:
    """Refuse a sum of anything but the named messages, one each.

    Raises:
        WrongTags: whatever it is instead.
    """
    distinct = len(set(names)) == len(names) == n_summands
    if tagging is None or not distinct or not tagging.are_right(slots, tags, names):
        raise WrongTags(
            "The sum's tags are not those of the messages that were signed.",
            remedy="Somebody presents another sum as this round's; tell the data owners.",
        )
