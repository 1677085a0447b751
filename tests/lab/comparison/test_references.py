"""What holds for every reference, and what each of them computes."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from world.plans import check_plan

from fedrec.errors import SettingsError
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.settings.schema import Settings
from fedrec.settings.starter import TUNED
from fedrec_lab.comparison.measurement import MeasurementStopped, MethodTask
from fedrec_lab.comparison.references import REFERENCES, Ease, Fitted, ScoredReference
from fedrec_lab.comparison.references import centralised as centralised_module
from fedrec_lab.comparison.references import reference as reference_module
from fedrec_lab.comparison.references.centralised import centralised
from fedrec_lab.comparison.references.reference import item_weights, training_only


@pytest.fixture(params=sorted(REFERENCES))
def reference(request, monkeypatch):
    monkeypatch.setattr(centralised_module, "ROUNDS_BESIDE", 2)
    return REFERENCES[request.param]()


def test_every_reference_measures_what_it_is_asked(reference, task_of):
    assert REFERENCES[reference.name] is type(reference)
    found = reference.measure(task_of(protocols=("full", "sampled"), seeds=(1, 5)))
    assert {(each.protocol, each.seed) for each in found} == {
        (protocol, seed) for protocol in ("full", "sampled") for seed in (1, 5)
    }
    assert len(found) == 4
    for each in found:
        assert (each.method, each.label) == (reference.name, reference.label)
        assert each.rates.users == 60
        assert 0 <= each.rates.ndcg <= each.rates.hr <= 1
        assert each.chosen


def test_every_reference_can_be_stopped(reference, task_of):
    with pytest.raises(MeasurementStopped):
        reference.measure(task_of(stop=lambda: True))


@pytest.mark.parametrize("name", ["ials", "ease"])
def test_planted_tastes_are_found(name, task_of):
    """Chance has HR@10 of about .09, and of the right cluster's items 10 in 20 are a hit."""
    (found,) = REFERENCES[name]().measure(task_of())
    assert found.rates.hr > 0.3


def test_ease_solves_its_least_squares_problem_column_by_column():
    """An independent way: each item by ridge regression on all others."""
    held = (np.random.default_rng(3).random((30, 7)) < 0.4).astype(float)
    weights = item_weights(held.T @ held, 2.5)
    for item in range(7):
        others = [other for other in range(7) if other != item]
        left = np.vstack([held[:, others], np.sqrt(2.5) * np.eye(6)])
        right = np.concatenate([held[:, item], np.zeros(6)])
        expected = np.linalg.lstsq(left, right, rcond=None)[0]
        assert weights[others, item] == pytest.approx(expected)
        assert weights[item, item] == 0.0


def test_ease_on_ml_100k(ml_100k, ml_100k_users, monkeypatch):
    """The reference figure of DESIGN section 5: HR@10 .1442, NDCG@10 .0742 with lambda 300."""
    settings = Settings.model_validate({"federation": {"minimum_item_users": 1}})
    task = MethodTask(
        settings=settings,
        catalogue=ml_100k.catalogue,
        users=ml_100k_users,
        protocols=("full",),
        seeds=(1,),
    )
    monkeypatch.setattr(reference_module, "EASE_GRID", (300.0,))
    (found,) = Ease().measure(task)
    assert found.rates.hr == pytest.approx(0.1442, abs=0.0011)
    assert found.rates.ndcg == pytest.approx(0.0742, abs=0.0005)


def test_ease_refuses_a_catalogue_that_is_too_large(task_of, monkeypatch):
    monkeypatch.setattr(reference_module, "MOST_ITEMS", 5)
    with pytest.raises(SettingsError, match="more than the 5"):
        Ease().measure(task_of())


def test_without_the_package_ials_says_how_to_get_it(task_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    with pytest.raises(SettingsError, match=r"pip install 'fedrec\[references\]'"):
        REFERENCES["ials"]().measure(task_of())


class TwoSettings(ScoredReference):
    """One setting puts the validation items first, the other one the test items."""

    name, label, seeded = "two", "two settings", False

    def __init__(self, users, active):
        self.users, self.active = users, active

    def fit(self, users, n_items, seed):
        assert (users.validation_items == -1).all()
        assert (users.test_items == -1).all()
        position = np.full(200, -1)
        position[self.active] = np.arange(len(self.active))
        for setting, first in (
            ("test", self.users.test_items),
            ("validation", self.users.validation_items),
        ):
            scores = np.zeros((len(users), n_items))
            where = position[first]
            scores[np.nonzero(where >= 0)[0], where[where >= 0]] = 1.0
            yield Fitted(setting=setting, scores=lambda rows, scores=scores: scores[rows])


def test_the_setting_is_chosen_on_validation_and_rare_items_rank_last(task_of):
    """Also where another setting has everything right on test."""
    task = task_of(seeds=(3,))
    holders = np.bincount(task.users.train_items, minlength=120)
    least = int(np.sort(holders)[30]) + 1
    federation = task.settings.federation.model_copy(update={"minimum_item_users": least})
    task = replace(task, settings=task.settings.model_copy(update={"federation": federation}))
    active = np.nonzero(holders >= least)[0]
    assert np.array_equal(task.active, active)
    assert 0 < len(active) < 120
    (found,) = TwoSettings(task.users, active).measure(task)
    assert found.chosen == "validation"
    scores = np.full((60, 120), -np.inf)
    scores[:, active] = 0.0
    for user, item in enumerate(task.users.validation_items):
        if holders[item] >= least:
            scores[user, item] = 1.0
    ranks = held_out_ranks(torch.from_numpy(scores), task.users, "test", protocol="full", seed=3)
    assert found.rates.hr == np.mean(ranks < 10)


def test_training_interactions_are_counted_among_active_items(planted):
    users, _ = planted
    active = np.arange(1, 120, 2)
    found = training_only(users, active)
    for user in range(len(users)):
        expected = [item // 2 for item in users.train_of(user).tolist() if item % 2]
        assert found.train_of(user).tolist() == expected


@pytest.mark.parametrize("room", [64, 1 << 20, 1 << 30])
@pytest.mark.parametrize("name", ["centralised-mf", "centralised-ncf"])
def test_centralised_settings_can_be_summed_without_overflow(name, room):
    run = Settings.model_validate(
        TUNED["fedals"].model_dump()
        | {"federation": {"maximum_users": room}, "rounds": {"total": 7, "user_fraction": 0.5}}
    )
    settings = REFERENCES[name]().settings(run)
    assert check_plan(settings.plan) == []
    assert settings.update.structure == "dense"
    assert settings.protection.name == "none"
    assert settings.rounds.user_fraction == 1.0


def test_a_run_with_the_same_algorithm_keeps_its_hyperparameters(small):
    settings = REFERENCES["centralised-mf"]().settings(small)
    assert settings.algorithm == small.algorithm
    assert settings.rounds.total == 2
    assert centralised(small, small.algorithm, rounds=9).rounds.total == 9
