"""Shares of a secret: hand-computed, over all subsets, and what fewer of them say."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import KeysError
from fedrec.protection.masks.shamir import PRIME, combine, share_at, split


def test_the_field_is_prime_and_holds_every_secret():
    """Miller and Rabin to the first twenty prime bases: no composite is known to pass them."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71):
        power = pow(base, odd, PRIME)
        passes = power == 1 or any(pow(power, 2**step, PRIME) == PRIME - 1 for step in range(twos))
        assert passes
    assert PRIME > 2**256


def test_a_line_computed_by_hand():
    """Secret 5 and slope 7: the shares at 1, 2, 3 are 12, 19, 26."""
    found = split((5).to_bytes(32, "big"), 2, (1, 2, 3), draw=lambda: 7)
    assert {place: int.from_bytes(share, "big") for place, share in found.items()} == {
        1: 12,
        2: 19,
        3: 26,
    }
    for pair in combinations(found, 2):
        assert combine({place: found[place] for place in pair}) == (5).to_bytes(32, "big")


@given(
    secret=st.binary(min_size=32, max_size=32),
    threshold=st.integers(1, 5),
    extra=st.integers(0, 3),
)
def test_any_threshold_shares_give_the_secret_back(secret, threshold, extra):
    places = range(3, 3 + threshold + extra)
    shares = split(secret, threshold, places)
    for chosen in combinations(places, threshold):
        assert combine({place: shares[place] for place in chosen}) == secret
    assert combine(shares) == secret


@given(secret=st.binary(min_size=32, max_size=32), other=st.binary(min_size=32, max_size=32))
def test_fewer_shares_fit_every_secret(secret, other):
    """One share of two says nothing: for any other secret there is a line through it, too."""
    share = split(secret, 2, (4, 9))[4]
    value, wanted = int.from_bytes(share, "big"), int.from_bytes(other, "big")
    slope = (value - wanted) * pow(4, -1, PRIME) % PRIME
    assert share_at((wanted, slope), 4) == share
    elsewhere = share_at((wanted, slope), 9)
    assert combine({4: share, 9: elsewhere}) == other


def test_every_share_differs_from_the_secret_and_between_calls():
    secret = bytes(range(32))
    one, other = split(secret, 2, (1, 2)), split(secret, 2, (1, 2))
    assert one != other
    assert all(share[1:] != secret for share in one.values())


@pytest.mark.parametrize(
    ("secret", "threshold", "places"),
    [(b"x" * 31, 1, (1,)), (b"x" * 32, 0, (1,)), (b"x" * 32, 3, (1, 2)), (b"x" * 32, 2, (1, 1))],
)
def test_what_cannot_be_shared(secret, threshold, places):
    with pytest.raises(KeysError):
        split(secret, threshold, places)


def test_the_place_zero_would_be_the_secret():
    with pytest.raises(KeysError, match="from 1 to"):
        share_at((1, 2), 0)


@pytest.mark.parametrize(
    "shares",
    [{}, {1: b"short"}, {1: PRIME.to_bytes(33, "big")}, {1: (PRIME - 1).to_bytes(33, "big")}],
)
def test_what_is_no_share(shares):
    with pytest.raises(KeysError):
        combine(shares)
