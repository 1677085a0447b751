"""Which sums of one version may be opened one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations

import numpy as np
import pytest

from fedrec.ids import ClientId
from fedrec.protection.masks import Survivors, invited, may_open


def of(names: str) -> Survivors:
    return frozenset(ClientId(name) for name in names)


@pytest.mark.parametrize(
    ("earlier", "found", "expected"),
    [
        ((), "abc", True),
        (("abcd",), "abcd", True),
        # One or two clients less or more than before.
        (("abcd",), "abc", False),
        (("abc",), "abcd", False),
        (("abcde",), "abc", False),
        # One left and three came: the three may be colluders, and the sum is the one's.
        (("abcd",), "abcefg", False),
        (("abcdef",), "abc", True),
        (("abc",), "abcdef", True),
        (("abcdef",), "abcghi", True),
        (("abcdef",), "ghi", True),
        # Of two earlier sets both may come again, and nothing else.
        (("abcdef", "abc"), "abc", True),
        (("abcdef", "abc"), "abcdef", True),
        (("abcdef", "abc"), "def", False),
    ],
)
def test_three_clients_at_least_stand_between_two_sums(
    earlier: tuple[str, ...], found: str, expected: bool
) -> None:
    assert may_open([of(one) for one in earlier], of(found), 3) is expected


def subsets(names: str, fewest: int) -> Iterable[str]:
    sizes = range(fewest, len(names) + 1)
    return chain.from_iterable(map("".join, combinations(names, size)) for size in sizes)


@pytest.mark.slow
def test_no_combination_of_what_may_be_opened_is_about_fewer() -> None:
    """Rational combinations of two 0/1 vectors a, b whose supports are small: multiples of a - b.

    Any other combination weighs everybody who is in both, or all of one side, alike; so its
    support is a union of "only in a", "only in b" and "in both". All of them are looked at.
    """
    names, minimum = "abcdefg", 3
    every = [of(one) for one in subsets(names, minimum)]
    pairs = 0
    for first in every:
        for second in every:
            if first == second or not may_open([first], second, minimum):
                continue
            pairs += 1
            vectors = np.array([[name in one for name in names] for one in (first, second)], int)
            for weights in ((1, -1), (1, 1), (2, -1), (1, -2), (1, 0), (0, 1)):
                left = np.count_nonzero(np.array(weights) @ vectors)
                assert left == 0 or left >= minimum
    assert pairs > 100


@pytest.mark.parametrize(
    ("earlier", "live", "expected"),
    [
        ((), "abcd", "abcd"),
        (("abcd",), "abcdef", "abcd"),
        # d is gone for good: two more are left out, so that the difference is of three.
        (("abcdefgh",), "abcefghx", "cefgh"),
        # As many new ones come in as a sum must have.
        (("abcde",), "abcdxyz", "cdxyz"),
        (("abc",), "abxyz", "xyz"),
        (("abcdefgh",), "abcde", "abcde"),
        (("abcdef", "abc"), "abcx", "abc"),
        (("abcdef", "abc"), "abx", ""),
    ],
)
def test_a_round_is_repeated_with_whom_others_will_sign_for(
    earlier: tuple[str, ...], live: str, expected: str
) -> None:
    assert invited([of(one) for one in earlier], of(live), 3) == of(expected)


def test_whoever_is_invited_may_be_opened() -> None:
    names = "abcdefg"
    for first in map(of, subsets(names, 3)):
        for live in map(of, subsets(names + "xy", 3)):
            found = invited([first], live, 3)
            assert found <= live
            assert len(found) < 3 or may_open([first], found, 3)
