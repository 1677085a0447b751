"""The canary audit: it lets the mechanism pass, and catches mechanisms that are broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from world.plans import plan_of

from fedrec.algorithms.noisy_pairs import NoisyRelease
from fedrec.cli.main import main
from fedrec.errors import SettingsError
from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec_lab.audit.dp import Release, audit_noise, clopper_pearson, noisy_sum
from fedrec_lab.simulation.federation import make_adder

slow = pytest.mark.slow
Vectors = Sequence[NDArray[np.int64]]


def plan(mechanism: str = "gaussian", **privacy: float) -> Plan:
    return plan_of(privacy={"mechanism": mechanism, **privacy})


@slow
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_mechanism_keeps_its_promise(mechanism, epsilon):
    report = audit_noise(plan(mechanism, epsilon=epsilon, rounds_per_user=1), trials=400)
    assert report.holds, report
    assert report.present - report.absent == pytest.approx(1.0, abs=5 * report.deviation / 14)


@slow
def test_sums_under_masks_keep_the_promise():
    """The release is what a coordinator unmasks; the noise is what each client put in before.

    Of four clients one tells it its own, so that three are left.
    """
    noisy_plan = plan_of(
        privacy={"mechanism": "gaussian", "rounds_per_user": 1},
        protection={"name": "masks"},
        rounds={"minimum_clients": 4},
    )

    def unmasked(layout: Layout, vectors: Vectors) -> NDArray[np.int64]:
        return add_up([layout.add_noise(vector) for vector in vectors], layout.vector_spec)

    layout = Layout.of(noisy_plan, 2)
    assert layout.mechanism is not None and layout.mechanism.noisy == 3
    add_up, _ = make_adder(noisy_plan, layout.vector_spec, n_clients=3, protect=True)
    report = audit_noise(noisy_plan, trials=200, release=unmasked)
    assert report.holds, report
    assert report.present - report.absent == pytest.approx(1.0, abs=5 * report.deviation / 10)


@slow
def test_half_of_the_noise_is_caught():
    def half(layout: Layout, vectors: Vectors) -> NDArray[np.int64]:
        assert layout.mechanism is not None
        less = replace(layout.mechanism, share=layout.mechanism.share // 2)
        return noisy_sum(replace(layout, mechanism=less), vectors)

    report = audit_noise(plan(rounds_per_user=1), trials=1500, release=half)
    assert not report.holds


@slow
def test_noise_on_touched_rows_alone_is_caught():
    """The sum's noise then shows which rows a user touched: the canary's above all."""

    def touched(layout: Layout, vectors: Vectors) -> NDArray[np.int64]:
        total = np.sum(vectors, axis=0)
        return np.where(total != 0, noisy_sum(layout, vectors), 0)

    report = audit_noise(plan(rounds_per_user=1), trials=400, release=touched)
    assert not report.holds


@slow
def test_a_clip_that_does_nothing_is_caught():
    """The canary asks for twice the clip; a sum that lets it pass has half the noise it needs."""

    def unclipped(layout: Layout, vectors: Vectors) -> NDArray[np.int64]:
        return noisy_sum(layout, [2 * vector for vector in vectors])

    assert not audit_noise(plan(rounds_per_user=1), trials=1500, release=unclipped).holds


def ease(total: int, **privacy: float) -> Plan:
    return plan_of(
        algorithm={"name": "ease"},
        update={"structure": "dense"},
        rounds={"total": total},
        privacy={"mechanism": "gaussian", "expected_users": 6040, **privacy},
    )


def drawn_noise() -> Release:
    """Return a release with the noise of a fixed seed, so that no bound fails by chance."""
    random = np.random.default_rng(0)

    def release(layout: Layout, vectors: Vectors) -> NDArray[np.int64]:
        assert layout.mechanism is not None
        noise = random.normal(scale=layout.mechanism.deviation, size=layout.length)
        return np.sum(vectors, axis=0) + np.rint(noise).astype(np.int64)

    return release


@pytest.mark.parametrize(("total", "parts"), [(1, 1), (2, 2), (60, 3)])
def test_all_parts_of_a_release_are_attacked_together(total, parts):
    """All values of the canary together have the length of the clip, and no part alone does."""

    def exact(layout: Layout, vectors: Vectors) -> NDArray[np.int64]:
        return np.sum(vectors, axis=0)

    report = audit_noise(ease(total), trials=2, release=exact)
    assert report.parts == parts
    assert (report.present, report.absent) == (pytest.approx(1.0, abs=1e-5), 0.0)


@slow
@pytest.mark.parametrize("epsilon", [3.0, 10.0])
def test_the_bound_of_a_whole_release_is_below_its_epsilon_and_near_it(epsilon):
    report = audit_noise(ease(2, epsilon=epsilon), trials=4000, release=drawn_noise())
    assert report.holds and report.findings[0].audited > 0.75 * epsilon, report


def test_a_clip_for_each_part_is_caught(monkeypatch):
    """Each part alone is within the clip, so that an attack on one part would miss it."""
    for name in ("of_counts", "of_pairs"):
        monkeypatch.setattr(NoisyRelease, name, 1.0)
    assert not audit_noise(ease(2, epsilon=8.0), trials=1000, release=drawn_noise()).holds


def test_without_noise_there_is_nothing_to_audit():
    with pytest.raises(SettingsError, match="no noise to audit"):
        audit_noise(Plan())


@slow
@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (1, 50), (25, 50), (50, 50), (7, 1000)])
@pytest.mark.parametrize("error", [0.05, 1e-4])
def test_bounds_are_those_of_the_beta_distribution(hits, trials, error):
    """Clopper and Pearson 1934, by quantiles of scipy's beta distribution."""
    # Half a second for every worker that only collects.
    from scipy.stats import beta

    low, high = clopper_pearson(hits, trials, error)
    assert low == pytest.approx(beta.ppf(error, hits, trials - hits + 1) if hits else 0.0, abs=1e-9)
    wanted = beta.ppf(1 - error, hits + 1, trials - hits) if hits < trials else 1.0
    assert high == pytest.approx(wanted, abs=1e-9)


@slow
@pytest.mark.parametrize(
    ("algorithm", "title"),
    [
        ("", "One noisy sum, 100 times"),
        (
            '[algorithm]\nname = "ease"\n[update]\nstructure = "dense"\n[rounds]\ntotal = 2\n',
            "A release of 2 parts, 100 times",
        ),
    ],
)
def test_the_command_says_what_it_found(tmp_path, capsys, algorithm, title):
    path = tmp_path / "run.toml"
    path.write_text('[privacy]\nmechanism = "gaussian"\nepsilon = 3.0\n' + algorithm)
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(path), "--trials", "100"])
    assert not ended.value.code
    seen = capsys.readouterr().out
    assert title in seen and "epsilon promised" in seen and seen.count("holds") >= 4
