"""Shamir's secret sharing of 32-byte secrets: any `threshold` shares give it back, fewer nothing.

A. Shamir, How to share a secret (CACM 22, 1979): the secret is the value at 0 of a random
polynomial of degree threshold - 1 over a prime field, and the share of place x its value at x.
The prime is the smallest one above 2^256, so that every 32-byte secret is an element.

Shares do not say whether they are right. The party that combines them checks the secret by other
means.
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
    """Return a uniform element of the field from the system's generator."""
    return secrets.randbelow(PRIME)


def share_at(coefficients: Iterable[int], place: int) -> bytes:
    """Return the share of a place.

    Args:
        coefficients: of the polynomial, the secret first.
        place: where it is evaluated, 1 to 2^32; at 0 it would give the secret away.

    Raises:
        KeysError: for a place outside that range.
    """
    if not 1 <= place <= 2**32:
        raise KeysError(f"A share stands at a place from 1 to 2^32, not at {place}.")
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
        threshold: how many shares give the secret back, at least 1.
        draw: gives the other coefficients; anything but uniform elements gives secrets away.

    Raises:
        KeysError: for a secret of another length, or fewer places than the threshold.
    """
    wanted = tuple(places)
    if len(secret) != SECRET_BYTES:
        raise KeysError(f"A shared secret has {SECRET_BYTES} bytes, not {len(secret)}.")
    if not 1 <= threshold <= len(set(wanted)) or len(set(wanted)) < len(wanted):
        raise KeysError(
            f"{len(wanted)} places, {len(set(wanted))} of them distinct, cannot share a secret "
            f"with a threshold of {threshold}."
        )
    coefficients = [int.from_bytes(secret, "big"), *(draw() for _ in range(threshold - 1))]
    return {place: share_at(coefficients, place) for place in wanted}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that these shares stand for, all of them used.

    Args:
        shares: by place; as many as the threshold, or more.

    Raises:
        KeysError: when a share is no element of the field, or no 32-byte secret comes out.
    """
    values = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    fits = all(len(share) == SHARE_BYTES for share in shares.values())
    if not values or not fits or max(values.values()) >= PRIME or min(values) < 1:
        raise KeysError("These are no shares of a secret.")
    numbers = list(values.values())
    above, below = _weights(tuple(values))
    # One inversion for all: the running products of the denominators undo each other.
    products = list(accumulate(below, lambda one, other: one * other % PRIME, initial=1))
    inverse = pow(products[-1], -1, PRIME)
    secret = 0
    for index in reversed(range(len(above))):
        weight = above[index] * inverse % PRIME * products[index]
        inverse = inverse * below[index] % PRIME
        secret = (secret + numbers[index] * weight) % PRIME
    if secret >= 2**256:
        raise KeysError("These shares do not belong to one secret.")
    return secret.to_bytes(SECRET_BYTES, "big")


def recover(
    shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]
) -> bytes:
    """Return the secret for which shares stand.

    With more shares than the threshold, several choices are tried, so that a few wrong shares
    next to each other do no harm.

    Args:
        shares: by place.
        threshold: how many of them give the secret back.
        is_right: tells the secret from anything else.

    Raises:
        RoundError: when there are too few shares, or too many wrong ones.
    """
    places = sorted(shares)
    if len(places) < threshold:
        raise RoundError(f"{len(places)} shares of a secret arrived, {threshold} are needed.")
    for start in range(len(places) if len(places) > threshold else 1):
        chosen = (places * 2)[start : start + threshold]
        try:
            secret = combine({place: shares[place] for place in chosen})
        except KeysError:
            continue
        if is_right(secret):
            return secret
    raise RoundError("The shares of a secret do not fit together; some clients sent wrong ones.")


def _weights(places: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return numerators and denominators of Lagrange's weights for the value at 0."""
    whole = math.prod(places)
    above = [whole // place % PRIME for place in places]
    below = [
        math.prod(other - place for other in places if other != place) % PRIME for place in places
    ]
    return above, below
