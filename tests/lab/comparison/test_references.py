"""What holds for every reference, and what each of them computes."""

import re
import sys
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from reference.plain_references import (
    plain_als_side,
    plain_cosine,
    plain_edlae,
    plain_lightgcn_loss,
    plain_rp3beta,
)
from world.plans import check_plan

from fedrec.data import UserSplit
from fedrec.errors import SettingsError
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.extras import install_command
from fedrec.settings.schema import Settings
from fedrec.settings.starter import TUNED
from fedrec_lab.comparison.measurement import MeasurementStopped, MethodTask
from fedrec_lab.comparison.references import REFERENCES, factors, item_weights
from fedrec_lab.comparison.references import centralised as centralised_module
from fedrec_lab.comparison.references.centralised import centralised
from fedrec_lab.comparison.references.reference import ScoredReference, training_only
from fedrec_lab.comparison.references.search import Axis, search

TUNED_ON_ROWS = {"ease", "edlae", "item-knn", "rp3beta", "ials", "lightgcn"}
N_USERS, N_ITEMS = 14, 9


def marked(names):
    """Return names in order; LightGCN trains for long."""
    slow = pytest.mark.slow
    return [pytest.param(n, marks=slow) if n == "lightgcn" else n for n in sorted(names)]


@pytest.fixture(params=marked(REFERENCES))
def reference(request, monkeypatch):
    monkeypatch.setattr(centralised_module, "ROUNDS_BESIDE", 2)
    return REFERENCES[request.param]()


def test_every_reference_measures_what_it_is_asked(reference, task_of):
    """Those that are tuned, and the ceiling, on the rows that may travel and on all rows."""
    assert REFERENCES[reference.name] is type(reference)
    found = reference.measure(task_of(protocols=("full", "sampled"), seeds=(1, 5), budget=2))
    twice = reference.name in TUNED_ON_ROWS | {"ceiling"}
    rows = [("", ""), ("-all-rows", ", all rows")] if twice else [("", "")]
    assert sorted((each.method, each.label, each.protocol, each.seed) for each in found) == sorted(
        (reference.name + suffix, reference.label + label, protocol, seed)
        for suffix, label in rows
        for protocol in ("full", "sampled")
        for seed in (1, 5)
    )
    for each in found:
        assert each.rates.users == 60
        assert 0 <= each.rates.ndcg <= each.rates.hr <= 1
        assert bool(each.chosen) == (reference.name != "ceiling")
        own_protocol = not isinstance(reference, centralised_module._Centralised)
        if reference.name != "ceiling" and (own_protocol or each.protocol == "full"):
            ranks = np.array(each.ranks)
            assert np.mean(ranks < 10) == each.rates.hr


@pytest.mark.parametrize("name", sorted(REFERENCES.keys() - {"ceiling"}))
def test_every_reference_that_takes_time_can_be_stopped(name, task_of):
    reference = REFERENCES[name]()
    with pytest.raises(MeasurementStopped):
        reference.measure(task_of(stop=lambda: True))


@pytest.mark.parametrize("name", marked(TUNED_ON_ROWS))
def test_planted_tastes_are_found(name, task_of):
    """Chance has HR@10 of about .09, and of the right cluster's items 10 in 20 are a hit."""
    found, _ = REFERENCES[name]().measure(task_of(budget=4))
    assert found.rates.hr > 0.25


@pytest.fixture(scope="module")
def tiny():
    """Every user and every item has something; users are more than items."""
    held = np.random.default_rng(3).random((N_USERS, N_ITEMS)) < 0.4
    held[np.arange(N_USERS), np.arange(N_USERS) % N_ITEMS] = True
    return held.astype(float)


def split_of(held):
    nothing = np.full(len(held), -1)
    return UserSplit(
        user_ids=tuple(f"user {row:02}" for row in range(len(held))),
        train_indptr=np.concatenate([[0], held.sum(1).cumsum()]).astype(np.int64),
        train_items=np.nonzero(held)[1],
        validation_items=nothing,
        test_items=nothing,
    )


def scores_of(name, held, setting, seed=1):
    fitted = REFERENCES[name]().prepare(split_of(held), held.shape[1])(setting, seed)
    return np.asarray(fitted(np.arange(len(held))), dtype=float)


@pytest.mark.parametrize("turned", [False, True], ids=["more users", "more items"])
@pytest.mark.parametrize("setting", [(2.5,), (2.5, 0.0), (2.5, 0.4)])
def test_ease_and_edlae_regress_each_item_on_the_others(tiny, setting, turned):
    """By the inverse over items, or over users where they are fewer; scores of unseen items."""
    held = tiny.T if turned else tiny
    expected = plain_edlae(held, *setting, *([0.0] if len(setting) == 1 else []))
    found = scores_of("ease" if len(setting) == 1 else "edlae", held, setting)
    assert found == pytest.approx(expected)


def test_item_knn_without_weights_is_the_cosine(tiny):
    """With all items as neighbours, but for an item's own weight of 1."""
    found = scores_of("item-knn", tiny, (float(N_ITEMS), 0.0))
    assert found == pytest.approx(plain_cosine(tiny))


@pytest.mark.parametrize("setting", [(9.0, 1.0, 0.0), (9.0, 0.6, 0.8), (3.0, 1.2, 0.5)])
def test_rp3beta_walks_three_steps(tiny, setting):
    expected = plain_rp3beta(tiny, int(setting[0]), *setting[1:])
    assert scores_of("rp3beta", tiny, setting) == pytest.approx(expected)


def test_ials_solves_both_sides_in_turn(tiny, monkeypatch):
    """As many conjugate steps as dimensions solve exactly."""
    monkeypatch.setattr(factors.improved, "__defaults__", (12,))
    monkeypatch.setattr(factors, "SWEEPS", 3)
    ridge, alpha, dim, exponent = 2.0, 5.0, 4, 0.5
    random = torch.Generator().manual_seed(7)
    users, items = (
        (torch.randn(n, dim, generator=random) * 0.1 / dim**0.5).double().numpy()
        for n in tiny.shape
    )
    of_users, of_items = (ridge * (tiny.sum(axis) / 64) ** exponent for axis in (1, 0))
    for _ in range(3):
        users = plain_als_side(items, tiny, alpha, of_users)
        items = plain_als_side(users, tiny.T, alpha, of_items)
    found = scores_of("ials", tiny, (ridge, alpha, float(dim), exponent), seed=7)
    assert found == pytest.approx(users @ items.T, abs=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_lightgcn_follows_the_gradient_of_its_loss(tiny, layers):
    random = np.random.default_rng(5)
    first = torch.from_numpy(random.standard_normal((N_USERS + N_ITEMS, 3)))
    triples = np.stack(
        [random.integers(N_USERS, size=20), *(N_USERS + random.integers(N_ITEMS, size=(2, 20)))]
    )
    leaf = first.clone().requires_grad_()
    plain_lightgcn_loss(tiny, leaf, triples, layers, 0.3).backward()
    graph = factors.adjacency(factors.interactions_of(split_of(tiny), N_ITEMS)).double()
    found = factors.gradient_of(graph, first, torch.from_numpy(triples), layers, 0.3)
    # The normalised graph has single precision.
    assert found.numpy() == pytest.approx(leaf.grad.numpy(), abs=1e-6)


def test_lightgcn_draws_other_items_where_there_are_some():
    owner = torch.arange(3).repeat_interleave(200)
    held = torch.tensor([[0, 1, 2], [1, 2, 3], [0, 2, 3]])
    known = (torch.arange(3)[:, None] * 4 + held).flatten().sort().values
    drawn = factors._unseen(owner, known, 4, torch.Generator().manual_seed(1))
    free = torch.tensor([3, 0, 1])[owner]
    # Six draws from four items, of which three are taken: (3/4)^6 stay taken.
    assert (drawn == free).float().mean() > 0.7


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
    only = (Axis(name="lambda", values=(300.0,), start=300.0),)
    monkeypatch.setattr(item_weights.Ease, "axes", only)
    (found,) = item_weights.Ease().measure(task)
    assert found.rates.hr == pytest.approx(0.1442, abs=0.0011)
    assert found.rates.ndcg == pytest.approx(0.0742, abs=0.0005)
    # Two users' held-out items are in no one's training items.
    ceiling = REFERENCES["ceiling"]().measure(task)
    assert [each.rates.hr for each in ceiling] == [pytest.approx(941 / 943)]


def test_the_ceiling_is_the_share_of_held_out_items_with_a_row(task_of):
    task = task_of()
    holders = np.bincount(task.users.train_items, minlength=120)
    travelling, everything = REFERENCES["ceiling"]().measure(task)
    assert travelling.rates.ndcg == np.mean(holders[task.users.test_items] >= 3)
    assert everything.rates.ndcg == np.mean(holders[task.users.test_items] >= 1)
    assert 0.5 < travelling.rates.ndcg < everything.rates.ndcg


def test_where_all_rows_travel_a_reference_is_shown_once(task_of, small):
    everything = small.federation.model_copy(update={"minimum_item_users": 1})
    settings = small.model_copy(update={"federation": everything})
    (found,) = REFERENCES["ease"]().measure(task_of(settings=settings, budget=1))
    assert found.method == "ease"


def test_ease_refuses_a_catalogue_that_is_too_large(task_of, monkeypatch):
    monkeypatch.setattr(item_weights, "MOST_INVERTED", 5)
    with pytest.raises(SettingsError, match="at most 5 rows"):
        item_weights.Ease().measure(task_of())


def test_without_the_package_item_knn_says_how_to_get_it(task_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "implicit", None)
    with pytest.raises(SettingsError, match=re.escape(install_command("references"))):
        REFERENCES["item-knn"]().measure(task_of())


LADDER = Axis(name="lambda", values=(10.0, 30.0, 100.0), start=30.0, widest=(1.0, 1000.0))


def test_a_small_grid_is_tried_whole_and_widened_where_its_edge_is_best():
    asked = []

    def worth(setting):
        asked.append(setting[0])
        return -abs(np.log(setting[0] / 300.0))

    found = search((LADDER,), 16, worth)
    assert asked == pytest.approx([10, 30, 100, 300, 1000])
    assert found.best == pytest.approx((300,))
    assert found.worst == (10.0,)
    assert (found.tried, found.notes) == (
        5, ("lambda 300 is outside the first grid, which was widened",),
    )  # fmt: skip
    found = search((LADDER,), 16, lambda setting: -setting[0])
    assert found.best == pytest.approx((1,))
    assert found.notes == ("warning: lambda 1 is at the edge of what was tried (no wider grid)",)
    found = search((LADDER,), 3, lambda setting: setting[0])
    assert found.notes == (
        "warning: lambda 100 is at the edge of what was tried (the budget is spent)",
    )
    assert search((LADDER,), 16, lambda setting: -abs(setting[0] - 30)).notes == ()


def test_a_large_grid_is_climbed_axis_by_axis_within_the_budget():
    axes = (
        replace(LADDER, values=(1.0, 3.0, 10.0, 30.0, 100.0), widest=None, start=1.0),
        Axis(name="dim", values=(64.0, 128.0, 256.0, 512.0), start=128.0, widest=(64.0, 512.0)),
    )
    tried = []

    def worth(setting):
        tried.append(setting)
        return -abs(np.log(setting[0] / 30.0)) - abs(np.log(setting[1] / 256.0))

    found = search(axes, 10, worth)
    assert found.best == (30.0, 256.0)
    assert len(tried) == len(set(tried)) == found.tried <= 10
    assert search(axes, 3, worth).tried == 3
    assert search(axes, 1, worth).best == (1.0, 128.0)


def test_no_more_dimensions_or_neighbours_than_rows():
    axis = Axis(name="dim", values=(64.0, 128.0, 256.0), start=128.0, counts_rows=True)
    assert axis.within(256) is axis
    fitting = axis.within(100)
    assert (fitting.values, fitting.start) == ((64.0,), 64.0)
    assert fitting.note == "dim above 64 not tried: there are 100 rows"
    assert axis.within(9).values == (9.0,)
    assert replace(LADDER, values=axis.values).within(9).values == axis.values


class TwoSettings(ScoredReference):
    """One setting puts the validation items first, the other one the test items."""

    name, label = "two", "two settings"
    axes: ClassVar = (Axis(name="first", values=(0.0, 1.0), start=0.0),)

    def __init__(self, users):
        self.whole = users

    def prepare(self, users, n_items):
        assert (users.validation_items == -1).all()
        assert (users.test_items == -1).all()
        active = np.nonzero(np.bincount(self.whole.train_items) >= 1)[0]
        if n_items < len(active):
            counts = np.bincount(self.whole.train_items)
            active = np.nonzero(counts >= np.sort(counts)[-n_items])[0]
        assert len(active) == n_items
        position = np.full(200, -1)
        position[active] = np.arange(n_items)

        def fit(setting, seed):
            first = (self.whole.test_items, self.whole.validation_items)[int(setting[0])]
            scores = np.zeros((len(users), n_items))
            where = position[first]
            scores[np.nonzero(where >= 0)[0], where[where >= 0]] = 1.0
            return lambda rows: scores[rows]

        return fit


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
    found, everything = TwoSettings(task.users).measure(task)
    assert found.chosen == everything.chosen == "first 1"
    scores = np.full((60, 120), -np.inf)
    scores[:, active] = 0.0
    for user, item in enumerate(task.users.validation_items):
        if holders[item] >= least:
            scores[user, item] = 1.0
    ranks = held_out_ranks(torch.from_numpy(scores), task.users, "test", protocol="full", seed=3)
    assert found.rates.hr == np.mean(ranks < 10)
    assert found.ranks == tuple(np.minimum(ranks, 10).tolist())


def test_a_validation_set_that_cannot_choose_says_so_with_an_interval(task_of):
    """Two settings with the same scores."""

    class Equal(TwoSettings):
        def prepare(self, users, n_items):
            fit = super().prepare(users, n_items)
            return lambda setting, seed: fit((0.0,), seed)

    task = task_of()
    found, _ = Equal(task.users).measure(task)
    assert found.note == (
        "warning: 60 validation users are too few to choose among 2 settings: the best has "
        "0.0000 [0.0000, 0.0000] more NDCG than the worst"
    )


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
