"""One block of integers to one ciphertext and back, by TenSEAL; the only file that imports it.

TenSEAL encrypts and decrypts. Its own serialisation is read, as produced here, to get at the
residues, and written, uncompressed, to hand a sum back; both never leave this process. What a
peer sent reaches SEAL only as residues that were checked to be below their primes.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from fedrec.errors import InternalError, KeysError
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.residues import ResidueLayout, Residues

_SEAL_HEADER = struct.Struct("<HBBBBHQ")
_CIPHERTEXT = struct.Struct("<32sBQQQdQ")
_COUNT = struct.Struct("<Q")
_UNCOMPRESSED = 0


def new_keys(plan: ProtectionPlan) -> bytes:
    """Return a new secret and public key with their parameters, and no other key."""
    import tenseal

    if plan.plain_modulus is None:
        context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS,
            plan.poly_modulus_degree,
            coeff_mod_bit_sizes=list(plan.coeff_mod_bit_sizes),
            n_threads=1,
        )
    else:
        context = tenseal.context(
            tenseal.SCHEME_TYPE.BFV,
            plan.poly_modulus_degree,
            plan.plain_modulus,
            list(plan.coeff_mod_bit_sizes),
            n_threads=1,
        )
    keys: bytes = context.serialize(
        save_public_key=True, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )
    return keys


def without_secret(keys: bytes) -> bytes:
    """Return the public key and the parameters of what `new_keys` returned.

    Raises:
        KeysError: when the keys are unreadable.
    """
    import tenseal

    try:
        context = tenseal.context_from(keys, n_threads=1)
        public: bytes = context.serialize(
            save_public_key=True,
            save_secret_key=False,
            save_galois_keys=False,
            save_relin_keys=False,
        )
    except (ValueError, RuntimeError) as error:
        raise KeysError("The keys of this epoch are not readable.") from error
    return public


class BlockCipher:
    """Encrypts and decrypts blocks under one pair of keys.

    Args:
        plan: an encrypting plan.
        keys: what `new_keys` returned for it, or `without_secret` made of that.
        opens: whether the secret key must be among them; where not, it must not be.

    Raises:
        KeysError: when the keys are unreadable, incomplete, of other parameters, or too many.
    """

    def __init__(self, plan: ProtectionPlan, keys: bytes, *, opens: bool = True) -> None:
        import tenseal

        self._layout = ResidueLayout.of_plan(plan)
        self._scale = None if plan.scale_bits is None else 2.0**plan.scale_bits
        self.n_slots = plan.poly_modulus_degree // (1 if self._scale is None else 2)
        self._head = _field(1, _varint(self.n_slots)) + b"\x12"
        self._prefix = b""
        try:
            self._context = tenseal.context_from(keys, n_threads=1)
            complete = self._context.has_public_key()
            complete = complete and self._context.has_secret_key() == opens
            surplus = self._context.has_relin_keys() or self._context.has_galois_keys()
            version, payload = self._serialised(self._encrypted([0] * self.n_slots))
        except (ValueError, RuntimeError) as error:
            raise KeysError("The keys of this epoch are not readable.") from error
        if not complete or surplus or payload[:32] != _parameters_id(plan, self._layout):
            raise KeysError(
                "The keys of this epoch belong to other parameters.",
                remedy="Unwrap the keys that were made for the federation's present plan.",
            )
        self._prefix = self._expected_prefix(plan, version)
        if not payload.startswith(self._prefix):
            raise InternalError("This SEAL stores ciphertexts in an unknown way.")
        self._version = version

    def encrypt(self, values: Sequence[float]) -> Residues:
        """Return the ciphertext of one value for every slot, shape (2, n_primes, N)."""
        vector = self._encrypted(values)
        _, payload = self._serialised(vector)
        if not payload.startswith(self._prefix):
            raise InternalError("A ciphertext came out with other parameters than planned.")
        residues = np.frombuffer(payload, dtype="<u8", offset=len(self._prefix))
        return residues.astype(np.uint64, copy=False).reshape(self._layout.shape)

    def decrypt(self, block: Residues) -> list[float]:
        """Return the value of every slot: centred integers (BFV) or reals (CKKS)."""
        values: list[float] = self._loaded(block).decrypt()
        return values

    def _loaded(self, block: Residues) -> Any:
        """Return TenSEAL's vector for the residues of a block."""
        import tenseal

        payload = self._prefix + block.astype("<u8", copy=False).tobytes()
        size = _SEAL_HEADER.size + len(payload)
        header = _SEAL_HEADER.pack(*self._version, _UNCOMPRESSED, 0, size)
        proto = self._head + _varint(size) + header + payload
        if self._scale is None:
            return tenseal.bfv_vector_from(self._context, proto)
        return tenseal.ckks_vector_from(
            self._context, proto + b"\x19" + struct.pack("<d", self._scale)
        )

    def _encrypted(self, values: Sequence[float]) -> Any:
        import tenseal

        if self._scale is None:
            return tenseal.bfv_vector(self._context, values)
        return tenseal.ckks_vector(self._context, values, self._scale)

    def _serialised(self, vector: Any) -> tuple[tuple[int, int, int, int], bytes]:
        """Return SEAL's magic and version, and the uncompressed payload, of a ciphertext."""
        proto: bytes = vector.serialize()
        if not proto.startswith(self._head):
            raise InternalError("This TenSEAL stores vectors in an unknown way.")
        start = len(self._head)
        while proto[start] & 0x80:
            start += 1
        start += 1
        *version, compression, _, size = _SEAL_HEADER.unpack_from(proto, start)
        payload = proto[start + _SEAL_HEADER.size : start + size]
        n_words = int(np.prod(self._layout.shape))
        if compression != _UNCOMPRESSED:
            payload = _decompressed(payload, _prefix_bytes() + 8 * n_words)
        magic, header_bytes, major, minor = version
        return (magic, header_bytes, major, minor), payload

    def _expected_prefix(self, plan: ProtectionPlan, version: tuple[int, int, int, int]) -> bytes:
        """Return what SEAL writes before the residues: parameters, shape, scale, length."""
        n_words = int(np.prod(self._layout.shape))
        return (
            _CIPHERTEXT.pack(
                _parameters_id(plan, self._layout),
                self._scale is not None,
                2,
                plan.poly_modulus_degree,
                len(self._layout.primes),
                self._scale or 1.0,
                1,
            )
            + _SEAL_HEADER.pack(
                *version, _UNCOMPRESSED, 0, _SEAL_HEADER.size + _COUNT.size + 8 * n_words
            )
            + _COUNT.pack(n_words)
        )


def _prefix_bytes() -> int:
    return _CIPHERTEXT.size + _SEAL_HEADER.size + _COUNT.size


def _parameters_id(plan: ProtectionPlan, layout: ResidueLayout) -> bytes:
    """Return SEAL's parms_id: BLAKE2b of scheme, degree, data primes and plain modulus."""
    scheme = 2 if plan.plain_modulus is None else 1
    words = (scheme, layout.degree, *layout.primes, plan.plain_modulus or 0)
    return hashlib.blake2b(struct.pack(f"<{len(words)}Q", *words), digest_size=32).digest()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


@cache
def _zstd_decompress() -> Any:
    """Return ZSTD_decompress of the library that TenSEAL itself compressed with."""
    found = importlib.util.find_spec("_tenseal_cpp")
    if found is None or found.origin is None:
        raise InternalError("TenSEAL's native library is not where it was expected.")
    try:
        function = ctypes.CDLL(found.origin).ZSTD_decompress
    except (AttributeError, OSError) as error:
        raise InternalError("This build of TenSEAL does not export ZSTD_decompress.") from error
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return function


def _decompressed(compressed: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that SEAL compressed in this process a moment ago."""
    out = ctypes.create_string_buffer(size)
    if _zstd_decompress()(out, size, compressed, len(compressed)) != size:
        raise InternalError("A ciphertext did not decompress to its expected size.")
    return out.raw
