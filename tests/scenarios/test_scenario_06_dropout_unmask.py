"""Scenario 6: clients drop out before and after their masked uploads.

A hundred clients, 42 neighbours each, 21 shares for a secret, which is what a fifth of corrupt
and a fifth of dropped clients needs. Up to there the sum of the survivors comes out exactly.
Twenty before and twenty after are two fifths together, for which these parameters do not stand: of
42 neighbours 25 remain on average, and somewhere fewer than 21. A plan that says two fifths gets 60
neighbours, and its sum comes out.
With sixty gone the round ends, and no client gives a share.
"""

import contextlib

import numpy as np
import pytest
from common.protection.masks.cohort import Cohort, make_people

from fedrec.errors import RevealRefused, RoundError
from fedrec.protection.masks import Tolerance, parameters_for
from fedrec.protection.masks.messages import pack

FIFTHS = Tolerance(corrupt_share=0.2, dropout_share=0.2, malicious=False)


@pytest.fixture(scope="module")
def people():
    return make_people(100)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (10, 10),
        pytest.param(20, 0, marks=pytest.mark.long),
        pytest.param(0, 20, marks=pytest.mark.long),
    ],
)
def test_scenario_06_a_fifth_drops_out(people, before, after):
    graph = parameters_for(100, FIFTHS)
    assert (graph.degree, graph.threshold) == (42, 21)
    cohort = Cohort.of(100, FIFTHS, people=people, minimum=10)
    gone = np.random.default_rng(6).permutation(100)[: before + after].tolist()
    found = cohort.run(before=gone[:before], after=gone[before:])
    np.testing.assert_array_equal(found, cohort.total(without=gone[:before]))


@pytest.mark.slow
def test_scenario_06_two_fifths_drop_out_where_the_plan_says_so(people):
    """Twenty before and twenty after the upload."""
    tolerance = Tolerance(corrupt_share=0.2, dropout_share=0.4, malicious=False)
    graph = parameters_for(100, tolerance)
    assert (graph.degree, graph.threshold) == (60, 21)
    cohort = Cohort.of(100, tolerance, people=people, minimum=10)
    gone = np.random.default_rng(7).permutation(100)[:40].tolist()
    found = cohort.run(before=gone[:20], after=gone[20:])
    np.testing.assert_array_equal(found, cohort.total(without=gone[:20]))


def test_scenario_06_three_fifths_end_the_round_and_unmask_nothing(people):
    cohort = Cohort.of(100, FIFTHS, people=people, minimum=10)
    cohort.advertise()
    cohort.share()
    gone = set(np.random.default_rng(6).permutation(100)[:60].tolist())
    with pytest.raises(RoundError, match=r"needs \d+"):
        cohort.mask(without=gone)
    assert cohort.collector.step == "vectors" and not cohort.collector.can_unmask
    # A coordinator that continues anyway has all signatures, but of most clients too few
    # neighbours are left for them to give shares.
    survivors = pack(set(range(100)) - gone, 100)
    here = cohort.positions(gone)
    signed = {
        own: cohort.participants[own].sign(survivors, cohort.people[own], cohort.roster)
        for own in here
    }
    giving = set()
    for own in here:
        with contextlib.suppress(RevealRefused):
            cohort.participants[own].give(signed, cohort.roster)
            giving.add(own)
    assert len(giving) < 20
    holders = cohort.participants[here[0]]._state.holders
    assert len(giving.intersection(holders)) < 21
