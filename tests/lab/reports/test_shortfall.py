"""A model that counting equals says so, wherever its row is shown."""

from __future__ import annotations

import numpy as np

from fedrec.data import Catalogue, Interactions, UserSplit, generate, leave_one_out
from fedrec.evaluation.metrics import Rates
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec_lab.reports.result_row import shortfall
from fedrec_lab.simulation.result import SimulationResult
from fedrec_lab.simulation.runner import simulate


def settings_of(clip: float = 2.0, **algorithm: float) -> Settings:
    return Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1, "maximum_users": 256},
            "algorithm": {"name": "fedals", "dim": 16, **algorithm},
            "update": {"structure": "dense", "clip": clip},
            "protection": {"name": "none"},
            "rounds": {"total": 4},
            "client": {"device": "cpu", "threads": 1},
        }
    )


def every_user_likes_the_same() -> tuple[UserSplit, Catalogue]:
    """200 users with 12 items each, item i drawn with a weight of 1 / (i + 1): no tastes."""
    draw = np.random.default_rng(5)
    weights = 1 / np.arange(1, 111)
    chosen = [draw.choice(110, 12, replace=False, p=weights / weights.sum()) for _ in range(200)]
    items = [f"i{item}" for items in chosen for item in items]
    users = [f"u{user}" for user in range(200) for _ in range(12)]
    found = Interactions.from_arrays(users, items)
    catalogue = Catalogue.from_interactions(found)
    return leave_one_out(found, catalogue), catalogue


def planted_tastes() -> tuple[UserSplit, Catalogue]:
    made = generate(n_users=120, n_items=110, n_clusters=3, interactions_per_user=15, seed=8)
    return leave_one_out(made.interactions, made.catalogue), made.catalogue


def run(data: tuple[UserSplit, Catalogue], **values: float) -> SimulationResult:
    return simulate(settings_of(**values), users=data[0], catalogue=data[1], also=("sampled",))


def rates(ndcg: float) -> Rates:
    return Rates(users=10, hr=0.5, recall=0.5, ndcg=ndcg, mrr=0.1)


def test_a_model_that_learned_is_not_reproached():
    result = run(planted_tastes(), regularisation=10.0)
    popularity = result.evaluation.rates("popularity", "validation")
    assert result.best.validation_ndcg > popularity.ndcg
    assert result.shortfall == ""
    assert result.rows()[0].note == "round chosen on validation"
    assert not result.comparison().notes


def test_a_model_that_learned_noise_says_so_and_what_to_change():
    result = run(
        every_user_likes_the_same(),
        regularisation=0.01,
        alpha=100.0,
        frequency_exponent=0.5,
        clip=1000.0,
    )
    assert not any(report.clipped_values for report in result.rounds)
    note = result.shortfall
    assert "on validation no better than popularity (" in note
    assert "untrained" not in note
    assert "algorithm.alpha, algorithm.regularisation" in note
    assert "fedrec tune" in note
    assert note in result.rows()[0].note
    assert note in result.comparison().to_text()
    assert note in result.comparison().to_markdown()
    assert result.comparison().to_record()["rows"][0]["note"] == note
    # Popularity at least equals what it is compared with.
    popularity = result.evaluation.rates("popularity", "validation")
    plan, sums = result.settings.plan, result.evaluation
    assert shortfall(plan, rates(popularity.ndcg), sums)
    assert not shortfall(plan, rates(popularity.ndcg + 1e-6), sums)


def test_what_was_clipped_is_named_with_the_setting():
    note = run(every_user_likes_the_same(), regularisation=1e-4, alpha=1000.0, clip=1e-3).shortfall
    assert "200 users were clipped to 0.001: raise update.clip" in note


def test_the_untrained_model_is_no_result_either():
    result = run(planted_tastes(), regularisation=10.0)
    found = result.evaluation.rates("untrained", "validation")
    note = shortfall(result.settings.plan, rates(found.ndcg), result.evaluation)
    assert f"the untrained model ({found.ndcg:.4f})" in note


def test_nothing_is_said_before_the_references_are_measured():
    assert shortfall(Plan(), rates(0.0), None) == ""
    assert shortfall(Plan(), None, None) == ""
