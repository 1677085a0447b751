"""Degree and threshold: the published table, the bound recomputed exactly, and what is refused."""

from fractions import Fraction
from math import comb

import pytest

from fedrec.errors import SettingsError
from fedrec.protection.masks import Tolerance, parameters_for

RATES = {"5/10": (0.05, 0.1), "10/10": (0.1, 0.1), "20/20": (0.2, 0.2), "33/33": (1 / 3, 1 / 3)}
# Computed elsewhere by the same union bound: (k, t) semi-honest, (k, t) malicious. A third of 100
# are 34 corrupt clients.
TABLE: dict[int, dict[str, tuple[tuple[int, int], tuple[int, int] | None]]] = {
    100: {
        "5/10": ((16, 6), (26, 16)),
        "10/10": ((22, 11), (32, 22)),
        "20/20": ((42, 21), (62, 42)),
        "33/33": ((68, 35), None),
    },
    300: {
        "5/10": ((32, 15), (60, 38)),
        "10/10": ((42, 22), (76, 52)),
        "20/20": ((80, 42), (172, 116)),
        "33/33": ((172, 88), None),
    },
    1000: {
        "5/10": ((40, 19), (90, 58)),
        "10/10": ((52, 28), (114, 78)),
        "20/20": ((112, 58), (340, 229)),
        "33/33": ((318, 163), None),
    },
    10000: {
        "5/10": ((46, 22), (114, 74)),
        "10/10": ((60, 32), (144, 98)),
        "20/20": ((134, 70), (562, 378)),
        "33/33": ((492, 251), None),
    },
}
CELLS = [
    (count, rates, malicious, row[malicious])
    for count, rows in TABLE.items()
    for rates, row in rows.items()
    for malicious in (False, True)
]


def tolerance(rates: str, malicious: bool) -> Tolerance:
    corrupt, dropout = RATES[rates]
    return Tolerance(corrupt_share=corrupt, dropout_share=dropout, malicious=malicious)


@pytest.mark.parametrize(("count", "rates", "malicious", "expected"), CELLS)
def test_the_table(count, rates, malicious, expected):
    if expected is None:
        with pytest.raises(SettingsError, match="No graph on") as refused:
            parameters_for(count, tolerance(rates, malicious))
        assert "well below 1" in refused.value.remedy
        return
    found = parameters_for(count, tolerance(rates, malicious))
    assert (found.degree, found.threshold) == expected
    assert not found.complete


def at_least(wanted: int, others: int, marked: int, drawn: int) -> Fraction:
    """Return the exact chance of at least so many marked ones among those drawn."""
    ways = sum(
        comb(marked, hit) * comb(others - marked, drawn - hit)
        for hit in range(max(0, wanted), drawn + 1)
    )
    return Fraction(ways, comb(others, drawn))


def meets_both_bounds(n: int, k: int, t: int, corrupt: int, dropped: int, malicious: bool) -> bool:
    captured = 2 * t - k if malicious else t
    if captured < 1:
        return False
    safe = n * at_least(captured, n - 1, corrupt, k) <= Fraction(1, 2**40)
    return safe and n * at_least(k - t + 1, n - 1, dropped, k) <= Fraction(1, 2**30)


@pytest.mark.parametrize("count", [32, 33, 45, 64, 99])
@pytest.mark.parametrize("malicious", [False, True])
def test_between_the_complete_graph_and_the_table_the_bound_is_exact(count, malicious):
    """Whole fractions over all degrees: the result meets the bound, and no smaller degree does."""
    found = parameters_for(count, tolerance("10/10", malicious))
    args = (-(-count // 10), count // 10, malicious)
    assert meets_both_bounds(count, found.degree, found.threshold, *args)
    for smaller in range(2, found.degree, 2):
        assert not any(meets_both_bounds(count, smaller, t, *args) for t in range(1, smaller + 1))


@pytest.mark.parametrize(("count", "threshold"), [(3, 3), (4, 3), (5, 4), (10, 7), (31, 21)])
def test_below_32_every_client_is_a_neighbour(count, threshold):
    found = parameters_for(count, tolerance("10/10", True))
    assert (found.degree, found.threshold, found.complete) == (count - 1, threshold, True)


def test_the_quorum_makes_two_sets_of_survivors_impossible():
    """Two quorums overlap in more clients than are corrupt, so in an honest one."""
    for count in (3, 10, 31, 40, 100, 1000):
        quorum = parameters_for(count, tolerance("10/10", True)).quorum
        assert 2 * quorum - count > -(-count // 10)
        assert quorum <= count - count // 10


@pytest.mark.parametrize("count", [-1, 0, 2, 10_001])
def test_numbers_of_clients_that_cannot_work(count):
    with pytest.raises(SettingsError, match="clients"):
        parameters_for(count, tolerance("10/10", False))


@pytest.mark.parametrize(("corrupt", "dropout"), [(-0.1, 0.1), (1.0, 0.1), (0.1, 1.5)])
def test_shares_that_cannot_be(corrupt, dropout):
    with pytest.raises(SettingsError, match="not in"):
        Tolerance(corrupt_share=corrupt, dropout_share=dropout, malicious=False)


def test_small_cohorts_are_held_to_their_tolerance():
    """Of ten clients t = 7 leaves three to drop out, not four; against four corrupt ones t = 8."""
    fits = Tolerance(corrupt_share=0.3, dropout_share=0.3, malicious=True)
    assert parameters_for(10, fits).threshold == 7
    with pytest.raises(SettingsError):
        parameters_for(10, Tolerance(corrupt_share=0.1, dropout_share=0.4, malicious=False))
    four = Tolerance(corrupt_share=0.4, dropout_share=0.2, malicious=True)
    assert parameters_for(10, four).threshold == 8
    with pytest.raises(SettingsError, match="Corrupt clients: 4"):
        parameters_for(10, Tolerance(corrupt_share=0.4, dropout_share=0.3, malicious=True))


def test_corrupt_clients_are_a_share_of_the_roster_whoever_takes_part():
    """Ten of a hundred may all be in a list of 13: 12 shares, since 2 x 11 < 13 + 10 = 23 < 24."""
    found = parameters_for(13, tolerance("10/10", True), n_members=100)
    assert (found.threshold, found.quorum) == (12, 12)
    assert parameters_for(13, tolerance("10/10", True)).threshold == 9
    args = (10, 4, True)
    sparse = parameters_for(40, tolerance("10/10", True), n_members=100)
    assert meets_both_bounds(40, sparse.degree, sparse.threshold, *args)
    for smaller in range(2, sparse.degree, 2):
        assert not any(meets_both_bounds(40, smaller, t, *args) for t in range(1, smaller + 1))
    # More than half of 40 and 10: two sets of signers share 11 clients.
    assert sparse.quorum == 26


def test_shares_of_corrupt_clients_are_rounded_up_and_those_of_dropouts_down():
    tenth, third = tolerance("10/10", True), tolerance("33/33", True)
    assert [tenth.corrupt_among(n) for n in (0, 1, 9, 10, 11, 100)] == [0, 1, 1, 1, 2, 10]
    assert [tenth.dropped_among(n) for n in (3, 9, 10, 19, 30)] == [0, 0, 1, 1, 3]
    assert (third.corrupt_among(300), third.dropped_among(300)) == (100, 100)


@pytest.mark.parametrize(
    ("members", "fewest"), [(3, 3), (4, 4), (5, 4), (9, 4), (11, 5), (100, 13), (10_000, 1003)]
)
def test_a_list_has_room_for_all_who_are_corrupt(members, fewest):
    """But a list of all clients was not chosen."""
    assert tolerance("10/10", True).fewest_listed(3, members) == fewest
