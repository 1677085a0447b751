"""Paillier: exact sums of integers packed into slots, or one per ciphertext as in the papers.

`paillier_key` has keys and encryption, and `packing` has slots. Values are integers in fixed slots,
so no exponent travels. Libraries for floats send an exponent in the clear with every ciphertext,
and it reveals something about the value. Ciphertexts are integers in frames of one length.

A sum is the plain product of its messages. Key holders that multiply the same contributions compare
it, byte by byte, with the coordinator's. When the coordinator publishes its sum, it adds random
residues of its own (`refreshed`). A receiver that didn't multiply the contributions then can't test
which ones it contains. For a party that did, the plain product reveals nothing beyond its factors.

Paillier has the limits of `bfv`. Members share the secret key if they open sums, only tags
authenticate ciphertexts, and the security is classical. It is also slower: a member needs
milliseconds for each ciphertext, and more without the secret key. Decryption isn't constant in
time.

The sets with one value per ciphertext can also send a few values with their indices in the clear,
as Top-K does in the papers. The preset `paper` is single-3072 with the package `phe`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, ClassVar

from fedrec.errors import KeysError, SettingsError
from fedrec.identity.secret import SecretKey, exported
from fedrec.protection.protection import Accumulator, EncryptingProtection, Member, Protection
from fedrec.protection.protection_plan import (
    CONTEXT_BYTES,
    HEADER_BYTES,
    INDEX_BYTES,
    MARK_BYTES,
    Envelope,
    ProtectionPlan,
)
from fedrec.protection.slot_widths import (
    N_TAGS,
    TAG_MODULUS,
    SlotWidths,
    entry_widths,
    tail_spec,
)
from fedrec.protection.tags import check_bounds
from fedrec.protection.vector import VectorSpec

if TYPE_CHECKING:
    from fedrec.protection.paillier_key import (
        PaillierEncryptor,
        PaillierPublicKey,
        PaillierSecretKey,
    )


# Security of a modulus against factoring: NIST SP 800-57 part 1, revision 5, table 2.
_SECURITY = {3072: 128, 2048: 112}
_FORMS = ("packed", "single")
_PAPER = "paper"


class Paillier(EncryptingProtection):
    """Exact sums at about 8 bytes a value (packed), or 768 (single)."""

    name: ClassVar[str] = "paillier"
    can_tag: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = tuple(
        [*(f"{form}-{bits}" for form in _FORMS for bits in _SECURITY), _PAPER]
    )

    @classmethod
    def plan(cls, spec: VectorSpec, *, preset: str | None = None) -> ProtectionPlan:
        """Choose parameters for a vector (see `Protection.plan`)."""
        weak = re.fullmatch(rf"({'|'.join(_FORMS)})-(\d+)", preset or "")
        if weak and int(weak[2]) < min(_SECURITY):
            raise SettingsError(
                f"A Paillier key of {weak[2]} bits can be factored now or soon. Use at least "
                f"{min(_SECURITY)} bits.",
                remedy=f"Use one of {', '.join(cls.presets)}.",
            )
        return super().plan(spec, preset=preset)

    @classmethod
    def _plan(
        cls, spec: VectorSpec, preset: str, largest: Protection | None = None
    ) -> ProtectionPlan:
        if spec.tagged:
            check_bounds(spec, TAG_MODULUS)
        # If any message of a federation has entries, rounds without entries use the same layout.
        if (spec if largest is None else largest.spec).entered is not None:
            return cls._plan_entries(spec, preset)
        _, widths = _parameters(preset, tagged=spec.tagged)
        return cls._planned(spec, preset, widths.n_blocks(spec))

    @classmethod
    def _plan_entries(cls, spec: VectorSpec, preset: str) -> ProtectionPlan:
        """Plan messages of entries. A vector without entries has fixed places only."""
        key_bits, widths = _parameters(preset, tagged=False)
        if widths.most_values > 1:
            raise SettingsError(
                "Indices in the clear can't be combined with packed ciphertexts. Clients' indices "
                "differ, and a slot can't move inside a ciphertext to match another client's.",
                remedy='Set protection.preset = "single-3072", or remove update.indices.',
            )
        entered = spec.entered
        entries = 0 if entered is None else entered.entries
        n_blocks = entries + entry_widths(key_bits).n_blocks(tail_spec(spec))
        return cls._planned(
            spec, preset, n_blocks, entries=entries, n_places=entered.length if entered else 0
        )

    @property
    def _has_entries(self) -> bool:
        """Whether the federation's messages are entries, even in rounds without entries."""
        return self._largest.spec.entered is not None

    @classmethod
    def _planned(
        cls,
        spec: VectorSpec,
        preset: str,
        n_blocks: int,
        *,
        entries: int = 0,
        n_places: int = 0,
    ) -> ProtectionPlan:
        key_bits, _ = _parameters(preset, tagged=False)
        frame_bytes = key_bits // 4
        return ProtectionPlan(
            protection=cls.name,
            preset=preset,
            spec_fingerprint=spec.fingerprint(),
            key_bits=key_bits,
            n_values=spec.length,
            n_slots=spec.length,
            n_blocks=n_blocks,
            frame_bytes=frame_bytes,
            message_bytes=HEADER_BYTES + n_blocks * frame_bytes + entries * INDEX_BYTES,
            security_bits=_SECURITY[key_bits],
            max_summands=spec.max_summands,
            limbs=(1,) * len(spec.segments),
            n_tags=N_TAGS if spec.tagged else 0,
            entries=entries,
            n_places=n_places,
        )

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context with the public modulus, and the secret with its factors."""
        from fedrec.protection.paillier_key import PaillierSecretKey

        key = PaillierSecretKey.generate(self.chosen.key_bits)
        modulus = key.public.n.to_bytes(self.chosen.key_bits // 8, "big")
        context = Envelope.new_context(self.chosen, key_id=_key_id(modulus)) + modulus
        return context, SecretKey._holding(context + key.to_bytes())

    def envelope(self, context: bytes) -> Envelope:
        """Refuse a context that isn't exactly a public modulus (see `Protection`)."""
        return self._opened(context)[0]

    def accumulator(self, context: bytes) -> Accumulator:
        """Return the coordinator's half, empty."""
        from fedrec.protection.packing import EntryLayout
        from fedrec.protection.paillier_sums import PaillierAccumulator

        layout = EntryLayout(self.spec, self.chosen.key_bits) if self._has_entries else None
        return PaillierAccumulator(*self._opened(context), layout)

    def member(self, context: bytes, secret: bytes | SecretKey, *, tag_key: bytes = b"") -> Member:
        """Return a client's half (see `OneStepProtection.member`)."""
        from fedrec.protection.paillier_key import PaillierSecretKey, PheSecretKey

        envelope, public = self._opened(context)
        content = exported(secret)
        if content[: len(context)] != context:
            raise KeysError(
                "The secret key isn't the one that the context names.",
                remedy="Unwrap the key of the present epoch.",
            )
        kind = PheSecretKey if self.chosen.preset == _PAPER else PaillierSecretKey
        return self._half(envelope, kind.from_bytes(content[len(context) :], public), tag_key)

    def encryption_key(self, secret: bytes | SecretKey) -> bytes:
        """Return the context with the public modulus."""
        return exported(secret)[: CONTEXT_BYTES + self.chosen.key_bits // 8]

    def encryptor(self, context: bytes, key: bytes, *, tag_key: bytes = b"") -> Member:
        """Return the half without a secret key (see `EncryptingProtection.encryptor`)."""
        from fedrec.protection.paillier_key import PaillierEncryptor, PheEncryptor

        envelope, public = self._opened(context)
        if key != context:
            raise KeysError(
                "The encryption key isn't exactly the modulus that the context names.",
                remedy="Unwrap the key of the present epoch.",
            )
        kind = PheEncryptor if self.chosen.preset == _PAPER else PaillierEncryptor
        return self._half(envelope, kind(public), tag_key)

    def _half(
        self, envelope: Envelope, key: PaillierSecretKey | PaillierEncryptor, tag_key: bytes
    ) -> Member:
        from fedrec.protection.paillier_sums import PaillierMember

        widths = None
        if not self._has_entries:
            _, widths = _parameters(self.chosen.preset, tagged=self.spec.tagged)
        return PaillierMember(self.spec, envelope, widths, key, tag_key)

    def _opened(self, context: bytes) -> tuple[Envelope, PaillierPublicKey]:
        """Return the envelope and the modulus from a context."""
        from fedrec.protection.paillier_key import PaillierPublicKey

        expected = CONTEXT_BYTES + self.chosen.key_bits // 8
        if len(context) != expected:
            raise KeysError(
                f"A coordinator's context under {self.name} has {expected} bytes, ending with the "
                f"public modulus, and no secret key. This one has {len(context)} bytes.",
                remedy="Pass the coordinator the context from `generate`, and no key.",
            )
        modulus = context[CONTEXT_BYTES:]
        envelope = super().envelope(context[:CONTEXT_BYTES])
        if envelope.key_id != _key_id(modulus):
            raise KeysError(
                "The context names a different public modulus from the one it contains.",
                remedy="Fetch the epoch's context again.",
            )
        return envelope, PaillierPublicKey.from_bytes(modulus, self.chosen.key_bits)


def _parameters(preset: str, *, tagged: bool) -> tuple[int, SlotWidths]:
    form, _, bits = ("single-3072" if preset == _PAPER else preset).partition("-")
    return int(bits), SlotWidths.of(int(bits), single=form == "single", tagged=tagged)


def _key_id(modulus: bytes) -> bytes:
    """Return the name of a key, which follows from its modulus."""
    return hashlib.sha256(b"fedrec.protection.paillier.key.v1" + modulus).digest()[:MARK_BYTES]
