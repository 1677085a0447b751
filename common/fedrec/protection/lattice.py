"""BFV and CKKS: put slots into blocks of ciphertexts, and add residues modulo the primes.

BFV: Fan and Vercauteren, Somewhat practical fully homomorphic encryption (eprint 2012/144), by
SEAL. It gives exact sums of integers modulo a plain modulus that no sum reaches. Only additions
happen, so neither relinearisation nor Galois keys are kept.

CKKS: Cheon, Kim, Kim and Song, Homomorphic encryption for arithmetic of approximate numbers (eprint
2016/421), by SEAL, used so that its sums are exact. A decrypted CKKS value carries noise that
reveals the secret key (Li and Micciancio, eprint 2020/1533). Here, every value is an integer
encoded far above the noise. `reveal` rounds to that integer, and no noise is left. The planner
proves that rounding is right, and refuses parameters without such a proof.

`bfv` has three limits. All members share the secret key, so one member that colludes with the
coordinator opens every message. This doesn't apply if the key authority keeps the key and members
have an `encryptor`. Only tags authenticate ciphertexts (`tags`). Its security is classical, not
post-quantum. `ckks` has the same limits, at more than twice the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, ClassVar

import numpy as np

from fedrec.errors import KeysError, MalformedUpdate, RevealRefused, SettingsError
from fedrec.identity.secret import SecretKey, exported
from fedrec.protection.ciphertext_blocks import (
    BlockCipher,
    ResidueLayout,
    Residues,
    new_keys,
    without_secret,
)
from fedrec.protection.encryption_parameters import (
    BFV_PRESETS,
    CKKS_PRESETS,
    plan_bfv,
    plan_ckks,
    resized,
)
from fedrec.protection.protection import (
    Accumulator,
    EncryptingProtection,
    EnvelopedSum,
    Member,
    Protection,
    check_count,
    encrypts_only,
)
from fedrec.protection.protection_plan import CONTEXT_BYTES, Envelope, ProtectionPlan
from fedrec.protection.tags import Tagging, check_tags
from fedrec.protection.vector import Integers, VectorSpec


class ModularAccumulator(EnvelopedSum):
    """Add ciphertexts without reading them, with numpy alone.

    No native parser sees a peer's data: TenSEAL 0.3.18 ends the process with SIGSEGV when it adds a
    vector of four crafted bytes. The result doesn't depend on the order of the messages, and a sum
    has only one encoding.
    """

    def __init__(self, plan: ProtectionPlan, envelope: Envelope) -> None:
        super().__init__(envelope)
        self._layout = ResidueLayout.of_plan(plan)
        self._total: Residues = np.zeros((plan.n_blocks, *self._layout.shape), dtype=np.uint64)

    def add_from(self, file: BinaryIO) -> None:
        """Add a file's message after checking all of it (see `Accumulator.add`)."""
        self._check(file)
        blocks = self._layout.unpack_all(memoryview(file.read()))
        if not all(block[1].any() for block in blocks):
            raise MalformedUpdate(
                "A ciphertext is transparent: its second polynomial is zero, so it hides nothing."
            )
        for total, block in zip(self._total, blocks, strict=True):
            self._layout.add_to(total, block)
        self._count += 1

    def _parts(self) -> Iterable[bytes]:
        return map(self._layout.pack, self._total)


MAX_RESIDUE = 0.25
MAX_VALUE = 2.0**53


class BlockMember(Member):
    """Encrypt vectors and reveal sums, block by block."""

    def __init__(
        self,
        spec: VectorSpec,
        plan: ProtectionPlan,
        envelope: Envelope,
        cipher: BlockCipher,
        tagging: Tagging | None,
        *,
        opens: bool = True,
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._envelope = envelope
        self._opens = opens
        self._layout = ResidueLayout.of_plan(plan)
        self._cipher: BlockCipher | None = cipher
        self._tagging = tagging

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Return the message of a vector (see `Member.protect`)."""
        cipher = self._open_cipher()
        limbs = self._plan.layout.split(self._spec, self._spec.validated(vector))
        counter = cipher.n_slots - self._plan.n_tags - 1
        rows = np.zeros((self._plan.n_blocks, cipher.n_slots), dtype=np.int64)
        rows[:, counter] = 1
        padded = np.zeros(self._plan.n_blocks * counter, dtype=np.int64)
        padded[: len(limbs)] = limbs
        rows[:, :counter] = padded.reshape(-1, counter)
        if self._tagging is not None:
            rows[:, counter + 1 :] = self._tagging.of_message(rows[:, : counter + 1], name)
        frames = (self._layout.pack(cipher.encrypt(row)) for row in rows.tolist())
        return self._envelope.close_message(b"".join(frames))

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Return the sum (see `Member.reveal`)."""
        cipher = self._open_cipher()
        if not self._opens:
            raise encrypts_only()
        found, body = self._envelope.open_sum(total)
        check_count(found, n_summands, self._plan.max_summands)
        blocks = self._layout.unpack_all(body)
        rows = self._whole([cipher.decrypt(block) for block in blocks])
        counter = cipher.n_slots - self._plan.n_tags - 1
        if names is not None:
            slots, tags = rows[:, : counter + 1], rows[:, counter + 1 :]
            check_tags(self._tagging, slots, tags, names, n_summands)
        slots = rows[:, :counter].reshape(-1)
        if (rows[:, counter] != n_summands).any() or slots[self._plan.n_slots :].any():
            raise RevealRefused(
                "The counters inside the sum don't match its number of summands.",
                remedy="A contribution is damaged or made with a different key. Abandon the round.",
            )
        return self._plan.layout.join(self._spec, slots[: self._plan.n_slots], n_summands)

    def over(self, protection: Protection) -> Member:
        """Return this half for another vector (see `Member.over`)."""
        plan = protection.chosen
        return BlockMember(
            protection.spec,
            plan,
            self._envelope.over(plan),
            self._open_cipher(),
            self._tagging,
            opens=self._opens,
        )

    def close(self) -> None:
        """Delete the key."""
        self._cipher = self._tagging = None

    def _whole(self, values: list[list[float]]) -> Integers:
        """Return the integers encoded by decrypted slots, int64 (n_blocks, n_slots).

        BFV decrypts to integers.

        Raises:
            RevealRefused: a slot is further from an integer than noise can move it.
        """
        if self._plan.scale_bits is None:
            return np.array(values, dtype=np.int64)
        real = np.array(values, dtype=np.float64)
        rounded = np.rint(real)
        near = np.abs(real - rounded) <= MAX_RESIDUE
        if not (near & (np.abs(rounded) < MAX_VALUE)).all():
            raise RevealRefused(
                "The sum doesn't decrypt to whole numbers.",
                remedy="A contribution is damaged or made with a different key. Abandon the round.",
            )
        return rounded.astype(np.int64)

    def _open_cipher(self) -> BlockCipher:
        if self._cipher is None:
            raise KeysError("This member was closed.", remedy="Make another from its secret.")
        return self._cipher


class BlockProtection(EncryptingProtection):
    """The common parts of BFV and CKKS: keys, contexts, and sums of residues."""

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context of 56 bytes without a key, and the secret with the public key."""
        context = Envelope.new_context(self.chosen)
        return context, SecretKey._holding(context + new_keys(self.chosen))

    def accumulator(self, context: bytes) -> Accumulator:
        """Return the coordinator's half, empty. It needs neither a key nor TenSEAL."""
        return ModularAccumulator(self.chosen, self.envelope(context))

    def encryption_key(self, secret: bytes | SecretKey) -> bytes:
        """Return the context with the public key."""
        content = exported(secret)
        return content[:CONTEXT_BYTES] + without_secret(content[CONTEXT_BYTES:])

    def member(self, context: bytes, secret: bytes | SecretKey, *, tag_key: bytes = b"") -> Member:
        """Return a client's half (see `OneStepProtection.member`)."""
        return self._half(context, exported(secret), tag_key, opens=True)

    def encryptor(self, context: bytes, key: bytes, *, tag_key: bytes = b"") -> Member:
        """Return the half without a secret key (see `EncryptingProtection.encryptor`)."""
        return self._half(context, key, tag_key, opens=False)

    def _half(self, context: bytes, content: bytes, tag_key: bytes, *, opens: bool) -> Member:
        envelope = self.envelope(context)
        if content[: len(context)] != context:
            raise KeysError(
                f"The {'secret' if opens else 'encryption'} key isn't the one that the context "
                "names.",
                remedy="Unwrap the key of the present epoch.",
            )
        plan = self.chosen
        cipher = BlockCipher(plan, content[len(context) :], opens=opens)
        tagging = None
        if plan.n_tags and plan.plain_modulus is not None:
            tagging = Tagging(tag_key, plan.plain_modulus, cipher.n_slots - plan.n_tags)
        return BlockMember(self.spec, plan, envelope, cipher, tagging, opens=opens)


class BFV(BlockProtection):
    """Exact sums at 13.5 bytes a value."""

    name: ClassVar[str] = "bfv"
    can_tag: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = tuple(BFV_PRESETS)

    @classmethod
    def _plan(
        cls, spec: VectorSpec, preset: str, largest: Protection | None = None
    ) -> ProtectionPlan:
        if largest is not None:
            return resized(largest.chosen, largest.spec, spec)
        return plan_bfv(spec, preset)


class CKKS(BlockProtection):
    """The papers' scheme: exact at 30 (lean) or 70 (paper) bytes a value."""

    name: ClassVar[str] = "ckks"
    presets: ClassVar[tuple[str, ...]] = tuple(CKKS_PRESETS)

    @classmethod
    def plan(cls, spec: VectorSpec, *, preset: str | None = None) -> ProtectionPlan:
        """Choose parameters for a vector (see `Protection.plan`)."""
        if preset == "approximate":
            raise SettingsError(
                "ckks/approximate was removed. Its sums kept noise that reveals the secret key, "
                "and its rounding didn't prevent that.",
                remedy=f"Use {' or '.join(f'ckks/{name}' for name in cls.presets)}, whose sums are "
                "exact, or bfv, which is exact at fewer bytes. Then provision again, "
                "because files made with that set can't be reused.",
            )
        return super().plan(spec, preset=preset)

    @classmethod
    def _plan(
        cls, spec: VectorSpec, preset: str, largest: Protection | None = None
    ) -> ProtectionPlan:
        if largest is not None:
            return resized(largest.chosen, largest.spec, spec)
        return plan_ckks(spec, preset)
