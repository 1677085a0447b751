"""Shamir's secret sharing of 32-byte secrets: `threshold` shares recover one, fewer reveal nothing.

A. Shamir, How to share a secret (CACM 22, 1979). The secret is the value at 0 of a random
polynomial of degree threshold - 1 over a prime field. The share of place x is its value at x. The
prime is the smallest one above 2^256, so every 32-byte secret is an element.

Shares don't show whether they are right. The party that combines them must check the secret by
other means.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from fedrec.errors import KeysError, RoundError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def random_element() -> int:
    """Return a uniform element of the field from the system's random generator."""
    return secrets.randbelow(PRIME)


def share_at(coefficients: Iterable[int], place: int) -> bytes:
    """Return the share of a place.

    Args:
        coefficients: the coefficients of the polynomial, the secret first.
        place: the place of evaluation, 1 to 2^32. At 0, the value is the secret.

    Raises:
        KeysError: the place is outside that range.
    """
    if not 1 <= place <= 2**32:
        raise KeysError(f"The place of a share must be from 1 to 2^32, not {place}.")
    value = 0
    for coefficient in reversed(tuple(coefficients)):
        value = (value * place + coefficient) % PRIME
    return value.to_bytes(SHARE_BYTES, "big")


def split(
    secret: bytes,
    threshold: int,
    places: Iterable[int],
    *,
    draw: Callable[[], int] = random_element,
) -> dict[int, bytes]:
    """Return the share of every place, 33 bytes each.

    Args:
        secret: 32 bytes.
        threshold: the number of shares that recover the secret, at least 1.
        draw: returns the other coefficients. They must be uniform elements, or the secret is
            exposed.

    Raises:
        KeysError: the secret has the wrong length, or there are fewer places than the threshold.
    """
    wanted = tuple(places)
    if len(secret) != SECRET_BYTES:
        raise KeysError(f"A shared secret must have {SECRET_BYTES} bytes, not {len(secret)}.")
    if not 1 <= threshold <= len(set(wanted)) or len(set(wanted)) < len(wanted):
        raise KeysError(
            f"{len(wanted)} places, {len(set(wanted))} of them distinct, can't share a secret with "
            f"a threshold of {threshold}."
        )
    coefficients = [int.from_bytes(secret, "big"), *(draw() for _ in range(threshold - 1))]
    return {place: share_at(coefficients, place) for place in wanted}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of these shares, using all of them.

    Args:
        shares: the shares by place, at least as many as the threshold.

    Raises:
        KeysError: a share isn't an element of the field, or the result isn't a 32-byte secret.
    """
    values = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    fits = all(len(share) == SHARE_BYTES for share in shares.values())
    if not values or not fits or max(values.values()) >= PRIME or min(values) < 1:
        raise KeysError("These aren't shares of a secret.")
    numbers = list(values.values())
    above, below = _weights(tuple(values))
    # Invert only once: the running products of the denominators undo each other.
    products = list(accumulate(below, lambda one, other: one * other % PRIME, initial=1))
    inverse = pow(products[-1], -1, PRIME)
    secret = 0
    for index in reversed(range(len(above))):
        weight = above[index] * inverse % PRIME * products[index]
        inverse = inverse * below[index] % PRIME
        secret = (secret + numbers[index] * weight) % PRIME
    if secret >= 2**256:
        raise KeysError("These shares don't belong to one secret.")
    return secret.to_bytes(SECRET_BYTES, "big")


def recover(
    shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]
) -> bytes:
    """Return the secret of some shares, of which a few may be wrong.

    If there are more shares than the threshold, several choices are tried. A few wrong shares next
    to each other then do no harm.

    Args:
        shares: the shares by place.
        threshold: the number of shares that recover the secret.
        is_right: returns True for the secret only.

    Raises:
        RoundError: there are too few shares, or too many wrong ones.
    """
    places = sorted(shares)
    if len(places) < threshold:
        raise RoundError(f"{len(places)} shares of a secret arrived, but {threshold} are needed.")
    for start in range(len(places) if len(places) > threshold else 1):
        chosen = (places * 2)[start : start + threshold]
        try:
            secret = combine({place: shares[place] for place in chosen})
        except KeysError:
            continue
        if is_right(secret):
            return secret
    raise RoundError("The shares of a secret don't match. Some clients sent wrong ones.")


def _weights(places: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return numerators and denominators of the Lagrange weights for the value at 0."""
    whole = math.prod(places)
    above = [whole // place % PRIME for place in places]
    below = [
        math.prod(other - place for other in places if other != place) % PRIME for place in places
    ]
    return above, below
