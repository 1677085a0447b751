"""Choose the parameters of a lattice scheme from bounds on the noise of a sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fedrec.errors import SettingsError
from fedrec.protection.ciphertext_blocks import ResidueLayout, batching_prime, coefficient_primes
from fedrec.protection.protection_plan import HEADER_BYTES, ProtectionPlan
from fedrec.protection.tags import TAGS
from fedrec.protection.vector import LimbLayout, VectorSpec

FAILURE_BITS = 40
ERROR_MAX = 21
DIRECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBound:
    """A bound that always holds, and one that fails with probability below 2^-40.

    Both are absolute values: coefficients modulo Q for BFV, slots times scale for CKKS.
    """

    worst_case: float
    likely: float

    def proof(self, limit: float) -> str:
        """Return which of the two bounds keeps a sum below ``limit``."""
        if self.worst_case <= limit:
            return "worst case"
        return "probability" if self.smaller <= limit else "none"

    @property
    def smaller(self) -> float:
        """The tighter of the two bounds."""
        return min(self.worst_case, self.likely)


def bfv_noise(degree: int, special_bits: int, n_summands: int, n_blocks: int) -> NoiseBound:
    """Bound the noise of every coefficient of a sum of BFV ciphertexts."""
    certain = n_summands * (0.5 + _divided_error(degree, special_bits))
    tail = math.log(2 * degree * n_blocks) + FAILURE_BITS * math.log(2)
    variance = n_summands * (degree + 1) / 12
    return NoiseBound(
        worst_case=certain + n_summands * (1 + degree) / 2,
        likely=certain + math.sqrt(2 * variance * tail),
    )


def ckks_noise(
    degree: int, special_bits: int, n_summands: int, n_blocks: int, *, n_primes: int
) -> NoiseBound:
    """Bound the error of every real slot of a sum of CKKS ciphertexts, times the scale.

    With several data primes, SEAL composes a coefficient from 64-bit words in floating point. A
    borrow between words then costs up to 2^11. Both bounds include that.
    """
    half = degree // 2
    per_coefficient = 0.5 + _divided_error(degree, special_bits)
    borrow = 2**11 if n_primes > 1 else 0
    certain = degree * (n_summands * per_coefficient + borrow)
    key_tail = math.log(DIRECTIONS * half) + (FAILURE_BITS + 1) * math.log(2)
    key_squared = 2 * degree / 3 * key_tail / math.cos(math.pi / DIRECTIONS) ** 2
    tail = math.log(2 * half * n_blocks) + (FAILURE_BITS + 1) * math.log(2)
    variance = n_summands * half * (1 + key_squared) / 12
    return NoiseBound(
        worst_case=certain + n_summands * degree * (1 + degree) / 2,
        likely=certain + math.sqrt(2 * variance * tail),
    )


def float_error(degree: int, n_summands: int) -> float:
    """Bound the error of encoding K messages and decoding their sum, per unit of the sum's bound.

    The transform of length N in double precision errs by at most log2(N) e relative to the 2-norm
    (Higham, Accuracy and Stability, theorem 24.2). e = 16 x 2^-53 covers its constants, inexact
    roots and the conversion to double. The error of a slot is at most the 2-norm of the error. B is
    the bound on the sum of absolute values in a slot. Then the summed vector has 2-norm at most
    sqrt(N) B, and the K encoded ones together at most sqrt(K) sqrt(N) B (Cauchy-Schwarz).
    """
    relative = math.log2(degree) * 16 * 2.0**-53
    return relative * math.sqrt(degree) * (1 + math.sqrt(n_summands))


def _divided_error(degree: int, special_bits: int) -> float:
    """Bound (e0 + e1 s - e u) / P, with P at least half of 2^special_bits."""
    return float(ERROR_MAX * (2 * degree + 1) / 2.0 ** (special_bits - 1))


SPARE_BITS = 6
ERROR_SHARE = 1 / 8

# The largest log2 of all primes together, for ternary secrets: homomorphic encryption standard.
_SECURITY = {
    256: {1024: 14, 2048: 29, 4096: 58, 8192: 118, 16384: 237, 32768: 476},
    192: {1024: 19, 2048: 37, 4096: 75, 8192: 152, 16384: 305, 32768: 611},
    128: {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A parameter set.

    Attributes:
        degree: N.
        coeff_mod_bit_sizes: the bits of the primes, the special one last.
        choices: the bits of the plain modulus (BFV) or of the scale (CKKS), the preferred first.
    """

    degree: int
    coeff_mod_bit_sizes: tuple[int, ...]
    choices: tuple[int, ...]


BFV_PRESETS = {
    "default": Preset(
        degree=4096, coeff_mod_bit_sizes=(54, 55), choices=(32, 36, 40, 30, 28, 26, 24, 22, 20)
    ),
    "wide": Preset(degree=8192, coeff_mod_bit_sizes=(60, 60), choices=(40, 44, 48, 36, 32, 28)),
}
CKKS_PRESETS = {
    "lean": Preset(degree=4096, coeff_mod_bit_sizes=(60, 49), choices=tuple(range(45, 19, -1))),
    "paper": Preset(degree=16384, coeff_mod_bit_sizes=(60, 40, 40, 60), choices=(40,)),
}


def security_bits(degree: int, modulus_bits: int) -> int:
    """Return the security level of a ring with this many bits in all its primes, or 0 below 128."""
    for level, largest in _SECURITY.items():
        if modulus_bits <= largest.get(degree, 0):
            return level
    return 0


def plan_bfv(spec: VectorSpec, preset: str) -> ProtectionPlan:
    """Return the BFV plan with the fewest blocks (the module has the rules)."""
    return _best("bfv", spec, preset, BFV_PRESETS, _bfv_candidates)


def plan_ckks(spec: VectorSpec, preset: str) -> ProtectionPlan:
    """Return the CKKS plan with the fewest blocks (the module has the rules)."""
    if spec.tagged:
        raise SettingsError(
            "Sums under ckks can't carry tags, so key holders must add all messages up.",
            remedy="Ask at most rounds.recompute_limit clients in a round, or use bfv.",
        )
    return _best("ckks", spec, preset, CKKS_PRESETS, _ckks_candidates)


def resized(plan: ProtectionPlan, largest: VectorSpec, spec: VectorSpec) -> ProtectionPlan:
    """Return the plan of a part of the largest vector under its parameters.

    A proof for more values in more blocks also holds for fewer (see `Protection.over`).

    Args:
        plan: the plan of the largest vector.
    """
    place = {segment.name: number for number, segment in enumerate(largest.segments)}
    chosen = [place[segment.name] for segment in spec.segments]
    layout = LimbLayout(
        limb_bits=plan.limb_bits, limbs=tuple(plan.limbs[number] for number in chosen)
    )
    slots = plan.poly_modulus_degree // (2 if plan.plain_modulus is None else 1)
    n_blocks = _n_blocks(spec, layout, slots)
    return replace(
        plan,
        spec_fingerprint=spec.fingerprint(),
        n_values=spec.length,
        n_slots=layout.n_slots(spec),
        n_blocks=n_blocks,
        message_bytes=HEADER_BYTES + n_blocks * plan.frame_bytes,
        limbs=layout.limbs,
    )


Candidates = Callable[[VectorSpec, Preset], Iterator[ProtectionPlan]]


def _best(
    protection: str,
    spec: VectorSpec,
    preset: str,
    presets: dict[str, Preset],
    candidates: Candidates,
) -> ProtectionPlan:
    plans = list(candidates(spec, presets[preset]))
    if plans:
        # Among plans with equally few blocks, prefer those that split fewer values.
        best = min(plans, key=lambda plan: (plan.n_blocks, plan.n_slots))
        return replace(best, protection=protection, preset=preset)
    split = replace(spec, segments=tuple(replace(each, whole=False) for each in spec.segments))
    if split != spec and any(candidates(split, presets[preset])):
        raise SettingsError(
            f"{protection}/{preset} can carry the sum of {spec.max_summands} messages only by "
            "splitting noisy values into limbs. The key holder would then see the sums of the "
            "limbs, for which the noise isn't proven.",
            remedy=_nearest(protection, spec, preset, presets, candidates),
        )
    raise SettingsError(
        f"No parameters of {protection}/{preset} keep the sum of {spec.max_summands} messages "
        "exact. The bound on noise or overflow leaves too little room.",
        remedy=_nearest(protection, spec, preset, presets, candidates),
    )


def _nearest(
    protection: str,
    spec: VectorSpec,
    preset: str,
    presets: dict[str, Preset],
    candidates: Candidates,
) -> str:
    for other, parameters in presets.items():
        if any(candidates(spec, parameters)):
            return f"The nearest choice that works is {protection}/{other}."
    summands = spec.max_summands // 2
    while summands and not any(candidates(replace(spec, max_summands=summands), presets[preset])):
        summands //= 2
    if summands:
        return f"It works with at most {summands} messages in a sum."
    return "Use a coarser grid or a smaller clip."


def _bfv_candidates(spec: VectorSpec, preset: Preset) -> Iterator[ProtectionPlan]:
    *data_bits, special_bits = preset.coeff_mod_bit_sizes
    modulus = math.prod(coefficient_primes(preset.degree, preset.coeff_mod_bit_sizes)[:-1])
    for bits in preset.choices:
        prime = batching_prime(preset.degree, bits)
        layout = _fit(spec, (prime - 1) // 2)
        if layout is None or bits >= min(data_bits):
            continue
        n_blocks = _n_blocks(spec, layout, preset.degree)
        noise = bfv_noise(preset.degree, special_bits, spec.max_summands, n_blocks)
        limit = modulus / (2 * prime)
        headroom = math.log2(limit / noise.smaller)
        if headroom >= SPARE_BITS:
            yield replace(
                _priced(spec, preset, layout, n_blocks),
                plain_modulus=prime,
                error_bound=noise.smaller / limit / 2,
                headroom_bits=headroom,
                proof=noise.proof(limit),
            )


def _ckks_candidates(spec: VectorSpec, preset: Preset) -> Iterator[ProtectionPlan]:
    *data_bits, special_bits = preset.coeff_mod_bit_sizes
    modulus = math.prod(coefficient_primes(preset.degree, preset.coeff_mod_bit_sizes)[:-1])
    float_unit = float_error(preset.degree, spec.max_summands)
    for bits in preset.choices:
        capacity = min(modulus >> (bits + 1 + SPARE_BITS), int(ERROR_SHARE / float_unit))
        layout = _fit(spec, capacity)
        if layout is None:
            continue
        n_blocks = _n_blocks(spec, layout, preset.degree // 2)
        noise = ckks_noise(
            preset.degree, special_bits, spec.max_summands, n_blocks, n_primes=len(data_bits)
        )
        largest = max(layout.largest_sum(spec), spec.max_summands)
        if noise.smaller <= ERROR_SHARE * 2**bits:
            yield replace(
                _priced(spec, preset, layout, n_blocks),
                scale_bits=bits,
                error_bound=noise.smaller / 2**bits + float_unit * largest,
                headroom_bits=math.log2(modulus) - bits - 1 - math.log2(largest),
                proof=noise.proof(ERROR_SHARE * 2**bits),
            )


def _fit(spec: VectorSpec, capacity: int) -> LimbLayout | None:
    return LimbLayout.fit(spec, capacity) if spec.max_summands <= capacity else None


def _n_blocks(spec: VectorSpec, layout: LimbLayout, slots: int) -> int:
    return -(-layout.n_slots(spec) // (slots - _n_tags(spec) - 1))


def _n_tags(spec: VectorSpec) -> int:
    return TAGS if spec.tagged else 0


def _priced(spec: VectorSpec, preset: Preset, layout: LimbLayout, n_blocks: int) -> ProtectionPlan:
    security = security_bits(preset.degree, sum(preset.coeff_mod_bit_sizes))
    if not security:
        raise SettingsError(
            f"N = {preset.degree} with {sum(preset.coeff_mod_bit_sizes)} bits of primes has less "
            "than 128 bits of security.",
            remedy=f"Use at most {_SECURITY[128].get(preset.degree, 0)} bits.",
        )
    residues = ResidueLayout.of(preset.degree, preset.coeff_mod_bit_sizes)
    return ProtectionPlan(
        protection="",
        preset="",
        spec_fingerprint=spec.fingerprint(),
        poly_modulus_degree=preset.degree,
        coeff_mod_bit_sizes=preset.coeff_mod_bit_sizes,
        n_values=spec.length,
        n_slots=layout.n_slots(spec),
        n_blocks=n_blocks,
        frame_bytes=residues.frame_bytes,
        message_bytes=HEADER_BYTES + n_blocks * residues.frame_bytes,
        security_bits=security,
        proof="none",
        max_summands=spec.max_summands,
        limb_bits=layout.limb_bits,
        limbs=layout.limbs,
        n_tags=_n_tags(spec),
    )
