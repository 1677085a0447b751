"""Taking masks off a sum: secrets put together from shares, and masks made again from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedrec.errors import KeysError, RoundError
from fedrec.protection.masks.keys import (
    WORD,
    Words,
    add_mask,
    add_words,
    pair_mask_key,
    private_key,
    self_mask_key,
)
from fedrec.protection.masks.shamir import combine


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stayed:
    """A survivor, whose own mask is taken off.

    Attributes:
        own: its position.
        seed: of its self mask.
    """

    own: int
    seed: bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Left:
    """A client that dropped out, whose masks are taken off its partners' vectors.

    Attributes:
        own: its position.
        private: its mask key.
        partners: position and public mask key of every survivor that masked with it.
    """

    own: int
    private: bytes
    partners: tuple[tuple[int, bytes], ...]


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


def unmask(
    total: Words,
    round_digest: bytes,
    stayed: Sequence[Stayed],
    left: Sequence[Left],
    *,
    n_wide: int,
    threads: int,
) -> Words:
    """Return the sum of the survivors' words, with all their masks taken off.

    Args:
        total: the sum of the masked words; left as it is.
        round_digest: `KeyList.digest`.
        n_wide: `MaskWords.n_wide`.
        threads: how many work at the same time; ciphers and sums run outside the interpreter's
            lock.
    """
    masks = list(_masks(round_digest, stayed, left))
    parts = [masks[start::threads] for start in range(threads)]

    def take_off(part: list[tuple[Callable[[], bytes], int]]) -> Words:
        words = np.zeros(len(total), dtype=WORD)
        for make_key, sign in part:
            add_mask(words, make_key(), sign, n_wide=n_wide)
        return words

    result = total.copy()
    with ThreadPoolExecutor(threads) as pool:
        for words in pool.map(take_off, parts):
            add_words(result, words, 1, n_wide=n_wide)
    return result


def _masks(
    round_digest: bytes, stayed: Sequence[Stayed], left: Sequence[Left]
) -> Iterator[tuple[Callable[[], bytes], int]]:
    """Yield for every mask that is still in the sum its key, made when needed, and a sign."""
    for survivor in stayed:
        yield partial(self_mask_key, round_digest, survivor.seed, own=survivor.own), -1
    for gone in left:
        private = private_key(gone.private)
        for other, public in gone.partners:
            make_key = partial(
                pair_mask_key, round_digest, private, public, own=gone.own, other=other
            )
            # The partner added its half if its position is the lower one.
            yield make_key, -1 if other < gone.own else 1
