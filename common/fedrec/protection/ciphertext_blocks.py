"""Represent a block of integers as a ciphertext of residues modulo primes, made by TenSEAL.

Residues are packed to the bit, so sizes never depend on their values. They are added with numpy
alone. Only this file imports TenSEAL, which encrypts and decrypts on machines with keys. This
module reads TenSEAL's own serialisation, as produced here, to extract the residues. It writes it
uncompressed to pass a sum back. Neither leaves this process. Data from a peer reach SEAL only as
residues that were checked to be below their primes.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import InternalError, KeysError, MalformedUpdate
from fedrec.protection.protection_plan import ProtectionPlan

# These bases decide primality for every number below 3.3e24 (Sorenson and Webster, 2015).
_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


@cache
def coefficient_primes(degree: int, bit_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the primes of ``SEAL CoeffModulus::Create``, in its order.

    Of primes of the same size, the smallest comes first, because SEAL pops them off a sorted list.
    """
    found = {bits: _largest(degree, bits, bit_sizes.count(bits)) for bits in set(bit_sizes)}
    return tuple(found[bits].pop() for bits in bit_sizes)


@cache
def batching_prime(degree: int, bits: int) -> int:
    """Return the largest prime of ``bits`` bits that is 1 modulo 2 x degree."""
    return _largest(degree, bits, 1)[0]


def _largest(degree: int, bits: int, count: int) -> list[int]:
    step = 2 * degree
    found: list[int] = []
    candidate = ((1 << bits) - 1) // step * step + 1
    while len(found) < count:
        if candidate < 1 << (bits - 1):
            raise ValueError(f"fewer than {count} primes of {bits} bits are 1 modulo {step}")
        if _is_prime(candidate):
            found.append(candidate)
        candidate -= step
    return found


def _is_prime(number: int) -> bool:
    """Decide primality by Miller-Rabin with bases that are enough for 64 bits."""
    if number < 2 or any(number % base == 0 for base in _BASES):
        return number in _BASES
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, base, odd, twos) for base in _BASES)


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


Residues = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidueLayout:
    """The shape and packing of one block.

    Attributes:
        degree: N.
        primes: the data primes, all below 2^61.
    """

    degree: int
    primes: tuple[int, ...]

    @classmethod
    def of(cls, degree: int, bit_sizes: tuple[int, ...]) -> ResidueLayout:
        """Return the layout of a parameter set without its last prime, which clients keep."""
        return cls(degree=degree, primes=coefficient_primes(degree, bit_sizes)[:-1])

    @classmethod
    def of_plan(cls, plan: ProtectionPlan) -> ResidueLayout:
        """Return the layout that ``plan`` implies."""
        return cls.of(plan.poly_modulus_degree, plan.coeff_mod_bit_sizes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (2, n_primes, N) of a block."""
        return (2, len(self.primes), self.degree)

    @property
    def frame_bytes(self) -> int:
        """The number of bytes of a packed block."""
        return sum(self._packed_bytes(prime) for prime in self.primes)

    def pack(self, block: Residues) -> bytes:
        """Return a block of reduced residues as exactly ``frame_bytes`` bytes."""
        return b"".join(
            _pack(block[:, index, :], prime.bit_length()) for index, prime in enumerate(self.primes)
        )

    def unpack(self, frame: bytes | memoryview) -> Residues:
        """Return the block that `pack` packed.

        Raises:
            MalformedUpdate: a residue isn't below its prime.
        """
        block = np.empty(self.shape, dtype=np.uint64)
        start = 0
        for index, prime in enumerate(self.primes):
            stop = start + self._packed_bytes(prime)
            residues = _unpack(frame[start:stop], prime.bit_length(), 2 * self.degree)
            if residues.max() >= prime:
                raise MalformedUpdate("A ciphertext contains a residue that isn't below its prime.")
            block[:, index, :] = residues.reshape(2, self.degree)
            start = stop
        return block

    def unpack_all(self, body: memoryview) -> list[Residues]:
        """Return every block of a body with a checked length."""
        step = self.frame_bytes
        return [self.unpack(body[start : start + step]) for start in range(0, len(body), step)]

    def add_to(self, total: Residues, block: Residues) -> None:
        """Add reduced residues of shape (..., 2, n_primes, N) to ``total``, modulo the primes."""
        moduli = np.array(self.primes, dtype=np.uint64)[:, None]
        total += block
        # Below the prime, the subtraction wraps to a huge number, so the minimum reduces.
        np.minimum(total, total - moduli, out=total)

    def _packed_bytes(self, prime: int) -> int:
        return 2 * self.degree * prime.bit_length() // 8


def _pack(residues: Residues, bits: int) -> bytes:
    values = residues.reshape(-1)
    parts = []
    for start, kind in _words(bits):
        parts.append((values >> np.uint64(start)).astype(kind).tobytes())
    high = (values >> np.uint64(bits // 8 * 8)).astype(np.uint8)
    for bit in range(bits % 8):
        parts.append(np.packbits((high >> bit) & 1).tobytes())
    return b"".join(parts)


def _unpack(packed: bytes | memoryview, bits: int, count: int) -> Residues:
    values: Residues = np.zeros(count, dtype=np.uint64)
    at = 0
    for start, kind in _words(bits):
        word = np.frombuffer(packed, dtype=kind, count=count, offset=at)
        values |= word.astype(np.uint64) << np.uint64(start)
        at += word.nbytes
    high = np.zeros(count, dtype=np.uint8)
    for bit in range(bits % 8):
        plane = np.frombuffer(packed, dtype=np.uint8, count=count // 8, offset=at)
        high |= np.unpackbits(plane) << bit
        at += plane.nbytes
    values |= high.astype(np.uint64) << np.uint64(bits // 8 * 8)
    return values


@cache
def _words(bits: int) -> tuple[tuple[int, str], ...]:
    """Return the first words with a residue's whole bytes, and the words' types."""
    words, start = [], 0
    for width, kind in ((32, "<u4"), (16, "<u2"), (8, "u1")):
        if bits - start >= width:
            words.append((start, kind))
            start += width
    return tuple(words)


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
    """Return the public key and the parameters from the result of `new_keys`.

    Raises:
        KeysError: the keys can't be read.
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
        raise KeysError("The keys of this epoch cannot be read.") from error
    return public


class BlockCipher:
    """Encrypt and decrypt blocks under one pair of keys.

    Args:
        plan: an encrypting plan.
        keys: the result of `new_keys` for the plan, or of `without_secret`.
        opens: whether the keys must include the secret key. Otherwise, they must not.

    Raises:
        KeysError: the keys can't be read, are incomplete, have other parameters, or are too many.
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
            raise KeysError("The keys of this epoch cannot be read.") from error
        if not complete or surplus or payload[:32] != _parameters_id(plan, self._layout):
            raise KeysError(
                "The keys of this epoch belong to other parameters.",
                remedy="Unwrap the keys that were made for the federation's present plan.",
            )
        self._prefix = self._expected_prefix(plan, version)
        if not payload.startswith(self._prefix):
            raise InternalError("This SEAL stores ciphertexts in an unknown format.")
        self._version = version

    def encrypt(self, values: Sequence[float]) -> Residues:
        """Return the ciphertext of one value for every slot, shape (2, n_primes, N)."""
        vector = self._encrypted(values)
        _, payload = self._serialised(vector)
        if not payload.startswith(self._prefix):
            raise InternalError("A ciphertext has other parameters than planned.")
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
            raise InternalError("This TenSEAL stores vectors in an unknown format.")
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
        """Return SEAL's bytes before the residues: parameters, shape, scale, length."""
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
    """Return ZSTD_decompress from the library that TenSEAL itself compresses with."""
    found = importlib.util.find_spec("_tenseal_cpp")
    if found is None or found.origin is None:
        raise InternalError("TenSEAL's native library isn't in its expected place.")
    try:
        function = ctypes.CDLL(found.origin).ZSTD_decompress
    except (AttributeError, OSError) as error:
        raise InternalError("This build of TenSEAL doesn't export ZSTD_decompress.") from error
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return function


def _decompressed(compressed: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that SEAL compressed in this process just before."""
    out = ctypes.create_string_buffer(size)
    if _zstd_decompress()(out, size, compressed, len(compressed)) != size:
        raise InternalError("A ciphertext didn't decompress to its expected size.")
    return out.raw
