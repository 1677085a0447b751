"""What a study tries next: grids, Optuna's samplers, and lists that are widened."""

from __future__ import annotations

from functools import partial

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.errors import SettingsError
from fedrec.settings.validation import load_settings
from fedrec_lab.tuning.space import (
    TrialSource,
    TriedSetting,
    contenders_of,
    given_settings,
    settings_to_try,
    value_of,
)

BASE = {"algorithm.name": "fedals", "update.structure": "dense", "protection.name": "none"}
AT_TEN = {"algorithm.regularisation": 10.0}


def load(values, base=BASE):
    return load_settings(None, {**base, **values}, environ={})


load_at_ten = partial(load, base={**BASE, **AT_TEN})


def proposals(tried, *, sampler="grid", trials=16, n_rows=1000, **base):
    return TrialSource(
        tried,
        partial(load, base={**BASE, **base}),
        sampler=sampler,
        trials=trials,
        seed=1,
        n_rows=n_rows,
    )


def all_of(found, worth):
    """Tell every proposal its worth, and return the proposals in their order."""
    tried = []
    while wave := found.wave():
        for values in wave:
            tried.append(values)
            found.tell(values, worth(values))
    return tried


def test_given_values_make_all_combinations_after_the_settings_own():
    tried = given_settings(["algorithm.alpha=1, 5", "algorithm.dim=8,4,8"], load)
    assert [each.values for each in tried] == [(1.0, 5.0), (4, 8)]
    found = all_of(proposals(tried), lambda values: 0.1)
    assert [tuple(values.values()) for values in found] == [
        (5.0, 64), (1.0, 4), (1.0, 8), (5.0, 4), (5.0, 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["algorithm.alpha"], "names no values"),
        (["=1,2"], "names no values"),
        (["algorithm.alpha=1", "algorithm.alpha=2"], "names no values of its own"),
        (["algorithm.alpha=1,-1"], "1 problem"),
    ],
)
def test_what_cannot_be_tried_is_refused(given, word):
    with pytest.raises(SettingsError, match=word) as refused:
        given_settings(given, load)
    assert refused.value.remedy


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_algorithm_declares_a_space_that_goes_with_its_starting_settings(algorithm):
    (contender,) = contenders_of(None, BASE, {}, [algorithm])
    settings = contender.load({})
    tried, notes = settings_to_try(
        settings.algorithm.search_space(settings.rounds.total), contender.load, n_rows=1024
    )
    assert not notes
    sizes = [each for each in tried if each.key.endswith("dim")]
    assert sizes or algorithm == "ease", "sizes are tried wherever there are some"
    plans = {
        contender.load({each.key: value}).plan.model_dump_json()
        for each in tried
        for value in each.values
    }
    assert len(plans) == 1 + sum(len(each.values) - 1 for each in tried) > 2


def test_sketch_tries_lambda_only_where_no_round_grades_it():
    base = {"algorithm.name": "sketch", "update.structure": "dense"}
    graded = load({"rounds.total": 3}, base).algorithm.search_space(3)
    assert list(graded) == ["algorithm.dim"]
    assert "algorithm.regularisation" in load({"rounds.total": 2}, base).algorithm.search_space(2)


def test_more_dimensions_than_rows_are_left_out_and_told():
    space = {"algorithm.dim": (32, 64, 128, 256)}
    tried, notes = settings_to_try(space, load, n_rows=100)
    assert [each.values for each in tried] == [(32, 64)]
    assert "100 rows" in notes[0]


def test_a_list_is_widened_while_its_last_value_is_best():
    tried, _ = settings_to_try(
        {"algorithm.regularisation": (1.0, 3.0, 10.0)}, load_at_ten, n_rows=9
    )
    found = proposals(tried, **AT_TEN)
    values = all_of(found, lambda one: 1.0 - abs(one["algorithm.regularisation"] - 100.0) / 1000.0)
    assert [one["algorithm.regularisation"] for one in values] == [10.0, 1.0, 3.0, 30.0, 100.0,
                                                                   300.0]  # fmt: skip
    assert len(found.notes) == 3
    assert found.edge_warnings() == []


def test_the_best_at_an_edge_is_a_warning_when_the_budget_is_spent():
    tried, _ = settings_to_try(
        {"algorithm.regularisation": (1.0, 3.0, 10.0)}, load_at_ten, n_rows=9
    )
    found = proposals(tried, trials=4, **AT_TEN)
    all_of(found, lambda one: one["algorithm.regularisation"])
    (warning,) = found.edge_warnings()
    assert "30, is at the edge" in warning


def test_the_best_of_two_values_is_at_an_edge_if_the_setting_allows_more():
    for key, values, seen in (
        ("algorithm.alpha", (1.0, 5.0), True),
        ("algorithm.frequency_exponent", (0.0, 1.0), False),
        ("algorithm.dim", (4, 8), False),
        ("algorithm.alpha", (5.0,), False),
    ):
        found = proposals([TriedSetting(key=key, values=values)], n_rows=9, **{key: values[0]})
        all_of(found, lambda one, key=key: one[key])
        assert bool(found.edge_warnings()) is seen, "1 is the largest exponent, and 9 the rows"


def test_widening_ends_at_what_the_setting_allows():
    tried = TriedSetting(key="algorithm.dim", values=(128, 256, 512))
    assert tried.beyond(512) == 1024
    assert tried.beyond(256) is None
    found = proposals([tried], **{"algorithm.dim": 512})
    all_of(found, lambda one: one["algorithm.dim"])
    assert found.edge_warnings() == [], "512 is the largest dim of fedals"
    assert TriedSetting(key="a", values=(0.0, 0.5, 1.0)).beyond(1.0) is None
    assert TriedSetting(key="a", values=("plain", "diag")).beyond("diag") is None


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_samplers_follow_from_the_seed_and_try_nothing_twice(sampler):
    def worth(one):
        return 1.0 / (1.0 + abs(one["algorithm.dim"] - 128) + abs(one["algorithm.alpha"] - 3.0))

    def run():
        space = load({}).algorithm.search_space(10)
        tried, _ = settings_to_try(space, load, n_rows=1000)
        return all_of(proposals(tried, sampler=sampler, trials=30), worth)

    first = run()
    assert first == run()
    assert len(first) == 30 == len({tuple(values.values()) for values in first})
    assert first[0] == {key: value_of(load({}), key) for key in first[0]}


def test_a_sampler_ends_when_all_is_tried_and_takes_what_diverged():
    tried = [TriedSetting(key="algorithm.alpha", values=(1.0, 5.0))]
    found = proposals(tried, sampler="tpe")
    assert len(all_of(found, lambda one: None)) == 2


def test_combinations_that_are_refused_are_not_proposed():
    tried = [
        TriedSetting(key="algorithm.dim", values=(4, 16)),
        TriedSetting(key="update.rank", values=(4, 8)),
    ]
    base = {"algorithm.name": "fedmf", "algorithm.dim": 16, "update.structure": "colr",
            "update.rank": 8}  # fmt: skip
    for sampler in ("grid", "random"):
        found = all_of(proposals(tried, sampler=sampler, **base), lambda one: 0.5)
        assert len(found) == 3, "rank 8 of 4 dimensions is none"
