"""What the model is compared with: popularity's known figures, and who knows nothing."""

import numpy as np
import pytest
from conformance.histories import counted
from world.plans import params, plan_of

from fedrec.algorithms import ALGORITHMS
from fedrec.data import generate, leave_one_out
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import MetricSums
from fedrec.plan.layout import METRICS_SLICE
from fedrec.settings.schema import Settings
from fedrec.training.evaluator import Evaluator
from fedrec.training.learner import Learner
from fedrec_lab.simulation import simulate


def popularity_of(interactions, catalogue):
    users = leave_one_out(interactions, catalogue)
    learner = Learner(plan_of(rounds={"total": 1}), len(catalogue), device="cpu")
    shared, private = counted(learner, users)
    measured = Evaluator(learner.local).measure(
        shared, users, private, references=True, number=2, local=False
    )
    assert MetricSums(measured).rates("local", "test") is None
    return MetricSums(measured).rates("popularity", "test")


def test_popularity_on_ml_100k_whatever_the_order_of_rows(ml_100k, ml_100k_interactions):
    """The reference figures of DESIGN section 5."""
    found = popularity_of(ml_100k_interactions, ml_100k.catalogue)
    assert found.users == 943
    assert found.hr == pytest.approx(0.0764, abs=0.0005)
    assert found.ndcg == pytest.approx(0.0389, abs=0.0005)
    order = np.random.default_rng(3).permutation(len(ml_100k_interactions))
    assert popularity_of(ml_100k_interactions.take(order), ml_100k.catalogue) == found


CAPACITY = {
    "fedmf": {"dim": 64, "learning_rate": 4.0, "regularisation": 0.0},
    "fedrap": {"schedule": "fixed"},
    "fedrecgel": {},
    "pfedclr": {"local_epochs": 3},
    "pfedrec": {"dim": 32},
    "fedncf": {"dim": 32},
    "gpfedrec": {},
    "perfedrec": {"learning_rate": 0.01},
    "cofedrec": {"clusters": 5},
    "pfedgraph": {"local_epochs": 3},
}
"""Settings with which an algorithm could remember which items were never drawn."""
LONGEST = {"cofedrec", "fedrecgel", "gpfedrec", "perfedrec", "pfedgraph"}


def structureless(protocol, algorithm="fedmf", seed=11, rounds=40):
    """No user can learn anything here; whoever beats chance was told the answer."""
    data = generate(
        n_users=60, n_items=500, n_clusters=1, interactions_per_user=42, noise=1.0, seed=seed
    )
    users = leave_one_out(data.interactions, data.catalogue)
    clip = (
        {"clip": 8.0 if algorithm == "fedmf" else 256.0}
        if not ALGORITHMS[algorithm].about.range_instead
        else {}
    )
    settings = Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1, "maximum_users": 64},
            "algorithm": {"name": algorithm, **CAPACITY[algorithm]},
            "update": {"structure": "dense"} | clip,
            "protection": {"name": "none"},
            "evaluation": {"protocol": protocol, "every_rounds": 1000},
            "rounds": {"total": rounds},
        }
    )
    result = simulate(settings, users=users, catalogue=data.catalogue)
    evaluation = result.evaluation
    return evaluation.rates("model", "test"), evaluation.rates("know_nothing", "test")


def test_every_algorithm_that_draws_negatives_is_looked_at():
    """fedals draws none; an installed algorithm of another package is not fedrec's to tune."""
    drawing = {
        name
        for name, kind in ALGORITHMS.items()
        if "negatives_per_positive" in kind.settings_type.model_fields
        and kind.__module__.startswith("fedrec.")
    }
    assert drawing == set(CAPACITY)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    # These train longer than the others, to the same chance.
    params(*sorted(set(CAPACITY) - LONGEST), long=sorted(LONGEST)),
)
def test_without_structure_the_sampled_protocol_stays_at_chance(algorithm):
    """Chance is 10 of 100; among 2 x 60 users the standard deviation is .027."""
    runs = [structureless("sampled", algorithm, seed) for seed in (11, 12)]
    for rates in zip(*runs, strict=True):
        assert np.mean([found.hr for found in rates]) == pytest.approx(0.1, abs=0.082)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "rounds", "least"), [("fedmf", 40, 0.25), ("fedrap", 20, 0.95)]
)
def test_without_structure_the_papers_protocol_gives_the_answer_away(algorithm, rounds, least):
    """An independent sketch of FedRAP in numpy has .92 to .98 after 10 rounds, 1.00 after 20."""
    model, counter = structureless("paper", algorithm, rounds=rounds)
    if rounds == 40:
        assert counter.hr >= 0.9
    assert model.hr >= least


@pytest.fixture
def small():
    data = generate(n_users=30, n_items=60, n_clusters=3, interactions_per_user=9, seed=4)
    plan = plan_of(
        federation={"minimum_item_users": 1},
        rounds={"total": 2},
        algorithm={"dim": 4},
        update={"structure": "dense"},
    )
    users = leave_one_out(data.interactions, data.catalogue)
    learner = Learner(plan, 60, device="cpu")
    shared, private = counted(learner, users)
    return learner, shared, users, private


def test_every_reference_counts_every_user(small):
    """Also those whose items are all held by too few, and who therefore never train."""
    learner, shared, users, private = small
    holders = shared.holders.copy()
    holders[users.train_of(0)] = 0
    shared = shared.with_holders(holders)
    sums = MetricSums(
        learner.contribute("evaluate", 4, shared, users, private).vector[METRICS_SLICE]
    )
    assert {sums.rates(name, "test").users for name in ("model", "popularity", "know_nothing")} == {
        30
    }


def test_local_training_that_diverges_costs_no_more_than_its_own_row(small, monkeypatch):
    learner, shared, users, private = small

    def diverge(*_):
        raise TrainingError("diverged")

    monkeypatch.setattr(Evaluator, "train_alone", diverge)
    sums = Evaluator(learner.local).measure(shared, users, private, references=True, number=4)
    assert MetricSums(sums).rates("local", "test") is None
    assert MetricSums(sums).rates("model", "test").users == 30


def test_local_training_is_measured(small):
    learner, shared, users, private = small
    sums = Evaluator(learner.local).measure(shared, users, private, references=True, number=4)
    assert MetricSums(sums).rates("local", "test").users == 30
