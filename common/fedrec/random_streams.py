"""Counter-based random numbers: a pure function of (seed, round, user, purpose, counter).

Nothing here has a state, so a draw depends neither on the process, the chunk, the order nor the
device that makes it. The generator is splitmix64: word ``c`` of a stream with key ``k`` is ``mix(k
+ c)``. Keys are mixed from seed, purpose, round and user. The same lines run on numpy and torch
int64 arrays, where additions and multiplications wrap.

These numbers are public by design, and anyone with the seed can predict them. Keys, masks and
privacy noise never come from here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_SAMPLES_OF_NORMAL = 1 << 16


class Purpose(IntEnum):
    """The purpose of a stream. Two purposes never share numbers."""

    ITEM_EMBEDDING = 1
    USER_EMBEDDING = 2
    BASIS = 3
    NEGATIVES = 4
    SHUFFLE = 5
    EVALUATION_NEGATIVES = 6
    SELECTION = 7
    SUBSET = 8
    GROUPS = 9


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def shift_right(words: Any, bits: int) -> Any:
    """Return the logical right shift of int64 words (numpy or torch)."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: Any) -> Any:
    """Return splitmix64's output function of int64 words, elementwise (numpy or torch)."""
    words = words + _GOLDEN
    words = (words ^ shift_right(words, 30)) * _FIRST
    words = (words ^ shift_right(words, 27)) * _SECOND
    return words ^ shift_right(words, 31)


def _mix_integer(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def stream_key(seed: int, purpose: Purpose, round_id: int = 0, counter: int = 0) -> int:
    """Return the signed 64-bit key of a stream that belongs to no particular user."""
    key = 0
    for part in (seed, int(purpose), round_id, counter):
        key = _mix_integer(key ^ _mix_integer(part))
    return _signed(key)


def user_stream(key: int, user_keys: Any) -> Any:
    """Return every user's own stream key.

    Args:
        key: the output of `stream_key`.
        user_keys: int64 identities of users (`UserSplit.user_keys`), numpy or torch, any shape.

    Returns:
        int64 keys of the same shape. Word ``c`` of a user's stream is ``mix(key + c)``.
    """
    return mix(mix(user_keys) ^ key)


def uniform(keys: Any, counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64 numbers in the open interval (0, 1), exact multiples of 2^-53 plus 2^-54."""
    words = mix(np.asarray(keys, dtype=np.int64) + counters)
    fractions: NDArray[np.float64] = shift_right(words, 11).astype(np.float64)
    return (fractions + 0.5) * 2.0**-53


def _logarithm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(values), computed with IEEE additions, multiplications and divisions only.

    The C library's log differs in the last bit between machines, but public tensors must not. With
    values = m 2^e and m in [sqrt(1/2), sqrt(2)), log m = 2 artanh((m-1)/(m+1)).
    """
    mantissa, exponent = np.frexp(values)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = exponent - low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for odd in range(21, 0, -2):
        series = series * square + 1.0 / odd
    return exponent * 0.6931471805599453 + 2.0 * ratio * series


# Wichura's algorithm AS 241 (PPND16): the normal quantile to about 1e-16.
_CENTRE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
     4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
     1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
     2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
     4.2313330701600911252e1, 1.0),
)  # fmt: skip
_NEAR_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
     1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
     4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
     1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
     2.05319162663775882187e0, 1.0),
)  # fmt: skip
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
     2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
     5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
     7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
     5.99832206555887937690e-1, 1.0),
)  # fmt: skip


def _rational(
    coefficients: tuple[tuple[float, ...], tuple[float, ...]], value: NDArray[np.float64]
) -> NDArray[np.float64]:
    above = np.zeros_like(value)
    below = np.zeros_like(value)
    for up, down in zip(*coefficients, strict=True):
        above = above * value + up
        below = below * value + down
    return above / below


def _quantile(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = probability - 0.5
    central = np.abs(centred) <= 0.425
    inner = np.where(central, 0.180625 - centred * centred, 0.0)
    result = centred * _rational(_CENTRE, inner)
    outer = ~central
    tail = np.minimum(probability[outer], 1.0 - probability[outer])
    depth = np.sqrt(-_logarithm(tail))
    near = depth <= 5.0
    magnitude = np.where(
        near,
        _rational(_NEAR_TAIL, np.where(near, depth - 1.6, 0.0)),
        _rational(_FAR_TAIL, np.where(near, 0.0, depth - 5.0)),
    )
    result[outer] = np.where(centred[outer] < 0, -magnitude, magnitude)
    return result


def normal(keys: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return standard normal numbers that are the same bits on every machine.

    Args:
        keys: one stream key, or an int64 array of keys, one for each row of `shape`.
        shape: shape of the result. Counters run along the flattened array, or along each row if
            there are several keys.

    Returns:
        float64 array of `shape`, by inversion (AS 241) with correctly rounded operations only.
    """
    rows = np.asarray(keys, dtype=np.int64)
    if rows.ndim == 0:
        flat = np.empty(int(np.prod(shape)), dtype=np.float64)
        for start in range(0, flat.size, _SAMPLES_OF_NORMAL):
            counters = np.arange(start, min(flat.size, start + _SAMPLES_OF_NORMAL))
            flat[counters] = _quantile(uniform(rows, counters))
        return flat.reshape(shape)
    width = int(np.prod(shape[1:]))
    out = np.empty((shape[0], width), dtype=np.float64)
    step = max(1, _SAMPLES_OF_NORMAL // max(width, 1))
    for start in range(0, shape[0], step):
        part = rows[start : start + step, None]
        out[start : start + step] = _quantile(uniform(part, np.arange(width)[None, :]))
    return out.reshape(shape)


def orthonormal_rows(key: int, n_rows: int, n_columns: int) -> NDArray[np.float64]:
    """Return `n_rows` orthonormal rows of length `n_columns`, uniform over all such frames.

    Gram-Schmidt on normal rows, twice for orthogonality to rounding, in sums of a fixed order:
    LAPACK's SVD would differ between machines in the last bits. The distribution is that of the U
    V^T of a normal matrix's SVD (both are invariant under rotations of the columns).

    Raises:
        ValueError: n_rows > n_columns.
    """
    if n_rows > n_columns:
        raise ValueError(f"{n_rows} orthonormal rows need at least as many columns as rows")
    rows = normal(key, (n_rows, n_columns))
    for index in range(n_rows):
        for _ in range(2):
            for earlier in range(index):
                rows[index] = (
                    rows[index] - _ordered_sum(rows[index] * rows[earlier]) * rows[earlier]
                )
        rows[index] = rows[index] / np.sqrt(_ordered_sum(rows[index] * rows[index]))
    return rows


def _ordered_sum(values: NDArray[np.float64]) -> np.float64:
    """Return the sum from left to right. The order of np.sum depends on the vector unit."""
    return np.float64(np.cumsum(values)[-1])
