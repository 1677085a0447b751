"""Noise in a sum under masks: that of the survivors, of no other client, and never cut off."""

from __future__ import annotations

import math

import numpy as np
import pytest
from common.protection.masks.cohort import Cohort
from world.plans import plan_of

from fedrec.errors import RoundError, SettingsError
from fedrec.plan.layout import Layout, protection_of
from fedrec.protection.masks import MaskWords, plan_masks
from fedrec.protection.vector import Integers

N_ITEMS = 1000
MULTIPLIER = 2.0
FEWEST = 4


def layout_of(**privacy: object) -> Layout:
    """Return 4,000 noisy values, for rounds of four clients or more."""
    noise = {"mechanism": "gaussian", "noise_multiplier": MULTIPLIER, "epsilon": 100}
    plan = plan_of(
        federation={"maximum_users": 1024}, protection={"name": "masks"}, update={"rank": 4},
        rounds={"minimum_clients": FEWEST}, privacy=noise | privacy,
    )  # fmt: skip
    return Layout.of(plan, N_ITEMS)


def noise_of_a_round(layout: Layout, count: int, **gone: set[int]) -> tuple[Cohort, Integers]:
    """Play a round in which every client sends noise alone."""
    cohort = Cohort.of(count, spec=layout.vector_spec, minimum=FEWEST)
    nothing = np.zeros(layout.length, dtype=np.int64)
    cohort.vectors = [layout.add_noise(nothing) for _ in range(count)]
    return cohort, cohort.run(**gone)


def test_the_sum_has_the_noise_of_its_summands_to_the_last_bit():
    layout = layout_of()
    cohort, total = noise_of_a_round(layout, 7, before={1}, after={2})
    assert np.array_equal(total, cohort.total(without={1}))
    assert not total[layout.count_slice].any() and not total[layout.metrics_slice].any()


@pytest.mark.slow
@pytest.mark.parametrize("gone", [{}, {"before": {5}, "after": {0}}, {"before": {4, 5}}])
def test_drop_outs_leave_at_least_the_noise_that_was_promised(gone):
    """Shares are (z C)^2 / 3 where one of four or more tells its own: n are n / 3 of the promise.

    One grid step is 2^-20 of the clip, so that z C is 2^21 steps. The law of the sum is compared
    with the normal one by Kolmogorov and Smirnov's test, which knows nothing of our samplers.
    """
    # Half a second for every worker that only collects.
    from scipy.stats import kstest

    layout = layout_of()
    cohort, total = noise_of_a_round(layout, 7, **gone)
    values = total[layout.change_slice][layout.noisy].astype(np.float64)
    n_summands = len(cohort.people) - len(gone.get("before", ()))
    promised = MULTIPLIER * 2**20
    wanted = math.sqrt(n_summands / (FEWEST - 1)) * promised
    # The standard deviation of a sample variance of n normal values is sqrt(2 / n) of it.
    close = 5 * math.sqrt(2 / len(values))
    assert np.mean(values**2) == pytest.approx(wanted**2, rel=close)
    assert np.mean(values**2) > (1 - close) * promised**2
    assert kstest(values / wanted, "norm").pvalue > 1e-6


def test_a_sum_of_fewer_than_the_shares_are_made_for_is_never_unmasked():
    layout = layout_of()
    with pytest.raises(RoundError, match="The round needs 4"):
        noise_of_a_round(layout, 4, before={3})


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_noise_of_all_clients_fits_the_ring(mechanism, sign):
    """Every user at the clip, and every client at the largest noise that there is."""
    layout = layout_of(mechanism=mechanism)
    by = layout.mechanism
    assert by is not None
    tensor = layout.vector_spec.segments[0]
    worst = layout.maximum_users * by.bound + layout.maximum_clients * by.largest
    assert tensor.max_abs_sum == worst < 2**62
    words = MaskWords(layout.vector_spec, plan_masks(layout.vector_spec))
    vector = np.zeros(layout.length, dtype=np.int64)
    vector[0] = sign * worst
    assert words.decode(words.encode(vector), layout.maximum_clients)[0] == sign * worst


def test_noise_that_no_ring_holds_is_refused_at_the_start():
    plan = plan_of(
        federation={"maximum_users": 2**31 - 1},
        protection={"name": "masks"},
        update={"fraction_bits": 40},
        privacy={"mechanism": "gaussian"},
    )
    with pytest.raises(SettingsError, match="max_abs_sum"):
        protection_of(plan, N_ITEMS)
