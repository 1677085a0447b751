"""Sizes of cells against published figures and against counting all draws."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest

from fedrec_authority.members.cell_placement import (
    HONEST,
    counted_share,
    size_needed,
    too_few_honest,
)

TENTH, FIFTH = Fraction(1, 10), Fraction(1, 5)


@pytest.mark.parametrize(
    ("n_clients", "share", "bits", "size"),
    [
        (100, TENTH, 20, 10),
        (100, TENTH, 40, 13),
        (1_000, TENTH, 20, 12),
        (1_000, TENTH, 40, 18),
        (10_000, TENTH, 20, 13),
        (10_000, TENTH, 40, 19),
        (100, FIFTH, 20, 13),
        (100, FIFTH, 40, 19),
        (1_000, FIFTH, 20, 16),
        (1_000, FIFTH, 40, 25),
        (10_000, FIFTH, 20, 18),
        (10_000, FIFTH, 40, 27),
    ],
)
def test_sizes_are_those_that_were_published(n_clients, share, bits, size):
    assert size_needed(n_clients, share, bits) == size


@pytest.mark.parametrize("size", [3, 4, 5, 6])
@pytest.mark.parametrize("corrupt", [0, 1, 2, 4])
def test_a_chance_is_that_of_all_draws(size, corrupt):
    n_clients = 9
    draws = list(combinations(range(n_clients), size))
    bad = sum(sum(one >= corrupt for one in draw) < HONEST for draw in draws)
    expected = min(Fraction(1), Fraction(n_clients // size * bad, len(draws)))
    assert too_few_honest(n_clients, Fraction(corrupt, n_clients), size) == expected


def test_shares_of_clients_are_rounded_up_and_too_few_honest_have_no_size():
    assert too_few_honest(9, Fraction(1, 100), 3) == too_few_honest(9, Fraction(1, 9), 3) > 0
    assert size_needed(5, TENTH, 20) == 4, "one of five is corrupt; four have three honest at least"
    assert size_needed(4, Fraction(1, 2), 20) is None


def test_availability_is_that_of_whole_cells():
    tenth = [round(counted_share(size, 0.10), 2) for size in (3, 5, 10, 20, 32)]
    assert tenth == [0.73, 0.59, 0.35, 0.12, 0.03]
    hundredth = [round(counted_share(size, 0.01), 2) for size in (3, 5, 10, 20, 32)]
    assert hundredth == [0.97, 0.95, 0.90, 0.82, 0.72]
