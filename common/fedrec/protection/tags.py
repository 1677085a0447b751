"""Linear tags prove that a sum contains exactly the signed messages.

A key authority that adds up a round's contributions itself knows what it opens. Above
`rounds.recompute_limit` contributions, that costs too much, so it has to use the coordinator's sum.
Every block of a message therefore carries tags of its slots m in separate slots:

    tag = <w, m> + pad    (modulo the plain modulus, or another prime)

The weights w are secret and the same for all messages. The pads are secret too, with one for each
message and block. Tags add up like slots. The tags of a sum of the messages i are right for its
slots M only if they are <w, M> plus the sum of the pads i. A party without weights and pads can
make a block with right tags only by adding up exactly these messages. Any other sum is detected,
except with probability (1/modulus)^n_tags. It may lack a message, contain one twice, have slots
masked out or multiplied, or be made up (Wegman and Carter, New hash functions, JCSS 22, 1981). Each
pad is used once, so sums under the same weights reveal nothing about them, however many there are.

A refusal reveals one bit about a sum that another party chose, and enough of them would reveal the
key. A round is therefore answered once, and refusals are counted.
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
"""The tags of a block under BFV. With a modulus of 20 bits or more, a forgery passes with 2^-80."""
KEY_BYTES = 32
UNIFORM_WORDS = 2
"""128 bits are reduced modulo the plain modulus, so that the result is close to uniform."""
SMALL_MODULUS = 2**32

Words = NDArray[Any]


class Tagging(Secret):
    """Make and check the tags of one federation's blocks.

    Args:
        key: 32 secret bytes that all members have, but not the coordinator.
        modulus: the prime modulus of sums of slots and tags.
        n_slots: the number of tagged slots in a block.
        n_tags: the number of tags of a block. A forgery passes with probability (1/modulus)^n_tags.
    """

    def __init__(self, key: bytes, modulus: int, n_slots: int, n_tags: int = TAGS) -> None:
        if len(key) != KEY_BYTES:
            raise KeysError(f"A tagging key must have {KEY_BYTES} bytes, not {len(key)}.")
        self._key = key
        self._modulus = modulus
        self._n_slots = n_slots
        self._n_tags = n_tags
        # Products of two residues must fit 64 bits, or Python's integers are used.
        self._kind: Any = np.uint64 if modulus <= SMALL_MODULUS else object

    def of_message(self, slots: NDArray[np.int64], name: bytes) -> NDArray[np.int64]:
        """Return the tags of one message, centred, shape (n_blocks, n_tags).

        Args:
            slots: the slots, shape (n_blocks, n_slots).
            name: the signed name of the author and the round, never used for a second message.
        """
        return self._whole((self._hashes(slots) + self._pads(name, len(slots))) % self._modulus)

    def are_right(
        self, slots: NDArray[np.int64], tags: NDArray[Any], names: Iterable[bytes]
    ) -> bool:
        """Return whether slots and tags are the sum of exactly the messages with these names.

        Args:
            slots: the revealed slots, shape (n_blocks, n_slots).
            tags: the revealed tags, shape (n_blocks, n_tags), in any representatives.
        """
        expected = self._hashes(slots)
        for name in names:
            expected = (expected + self._pads(name, len(slots))) % self._modulus
        found = np.mod(tags.astype(object), self._modulus)
        return bool(np.array_equal(found, expected.astype(object)))

    @cached_property
    def _weights(self) -> Words:
        """The secret weights, shape (n_tags, n_slots)."""
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
        """Return uniform residues from an AES-256-CTR stream with its own key for each purpose."""
        info = canonical("fedrec sum tags v1", self._modulus, self._n_slots, purpose)
        key = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=b"", info=info).derive(self._key)
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * UNIFORM_WORDS * count)), dtype="<u8")
        high, low = words.reshape(count, UNIFORM_WORDS).T.astype(object)
        residues: Words = ((high * 2**64 + low) % self._modulus).astype(self._kind)
        return residues

    def _whole(self, residues: Words) -> NDArray[np.int64]:
        """Return residues as centred integers, in the form of a block."""
        half = self._modulus // 2
        signed = residues.astype(np.int64)
        return np.where(signed > half, signed - self._modulus, signed)


def check_bounds(spec: VectorSpec, modulus: int) -> None:
    """Refuse values that tags don't bind, because two sums that differ by the modulus match.

    If no value reaches half the modulus in size, its residue determines the value.

    Args:
        spec: a tagged vector whose values are tagged unsplit. Limbs fit their slots, which are
            residues of the modulus themselves.

    Raises:
        SettingsError: a value can be too large. The error names the segments and the settings.
    """
    wide = [segment for segment in spec.segments if 2 * segment.max_abs_sum >= modulus]
    if wide:
        names = ", ".join(f"{each.name} (up to {each.max_abs_sum})" for each in wide)
        raise SettingsError(
            f"The sums of {names} reach half of {modulus}, the modulus of their tags. Tags can't "
            "distinguish sums that differ by it.",
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
    """Refuse any sum but that of the named messages, one each.

    Raises:
        WrongTags: the sum is another one.
    """
    distinct = len(set(names)) == len(names) == n_summands
    if tagging is None or not distinct or not tagging.are_right(slots, tags, names):
        raise WrongTags(
            "The sum's tags don't match the signed messages.",
            remedy="A different sum was presented as this round's sum. Tell the data owners.",
        )
