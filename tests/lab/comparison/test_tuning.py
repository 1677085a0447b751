"""Which settings are tried, and in which order they come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import Rates
from fedrec.settings.starter import Starter
from fedrec.settings.validation import load_settings
from fedrec_lab.comparison.tuning import Trial, grid_of, tried, try_settings


def test_given_values_make_all_combinations():
    found = grid_of("fedmf", ["algorithm.learning_rate=0.5, 1", "rounds.total=2,3,2"])
    assert found == (
        {"algorithm.learning_rate": "0.5", "rounds.total": "2"},
        {"algorithm.learning_rate": "0.5", "rounds.total": "3"},
        {"algorithm.learning_rate": "1", "rounds.total": "2"},
        {"algorithm.learning_rate": "1", "rounds.total": "3"},
    )


@pytest.mark.parametrize(
    ("algorithm", "given", "word"),
    [
        ("fedmf", [], "no grid"),
        ("fedals", ["algorithm.alpha"], "names no values"),
        ("fedals", ["=1,2"], "names no values"),
        ("fedals", ["algorithm.alpha=1", "algorithm.alpha=2"], "names no values of its own"),
        ("fedals", [f"algorithm.dim={','.join(map(str, range(1, 102)))}"], "101 combinations"),
    ],
)
def test_what_cannot_be_tried_is_refused(algorithm, given, word):
    with pytest.raises(SettingsError, match=word) as refused:
        grid_of(algorithm, given)
    assert refused.value.remedy


@pytest.mark.parametrize(
    "algorithm", [name for name, kind in ALGORITHMS.items() if kind.about.grid]
)
def test_every_default_grid_goes_with_the_starter(algorithm, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(Starter(algorithm=algorithm).text(), encoding="utf-8")
    plans = [load_settings(path, values, environ={}).plan for values in grid_of(algorithm, [])]
    assert len({plan.model_dump_json() for plan in plans}) == len(plans) > 1


def test_the_best_on_validation_comes_first_and_the_diverged_last():
    def trial(name: str, ndcg: float | None) -> Trial:
        rates = None if ndcg is None else Rates(users=9, hr=0, recall=0, ndcg=ndcg, mrr=0)
        return Trial(values={"a": name}, rates=rates)

    trials = [trial("x", 0.0), trial("y", None), trial("z", 0.3), trial("w", 0.3)]
    assert [each.values["a"] for each in tried(trials)] == ["z", "w", "x", "y"]


def test_a_trial_is_a_federation_measured_on_validation(planted, small):
    users, catalogue = planted
    trial, popularity = try_settings(small, {"rounds.total": "2"}, users, catalogue)
    assert trial.rates is not None and popularity is not None
    # With the test items of other users' choice nothing changes.
    moved = replace(users, test_items=users.test_items[::-1].copy())
    again, _ = try_settings(small, {"rounds.total": "2"}, moved, catalogue)
    assert again.round == trial.round and again.values == trial.values
    assert try_settings(small, {}, users, catalogue, stop=lambda: True) is None


def test_settings_that_diverge_are_told_and_not_fatal(planted, small):
    users, catalogue = planted
    algorithm = small.algorithm.model_copy(update={"learning_rate": 1000.0})
    wild = small.model_copy(
        update={
            "algorithm": algorithm,
            "update": small.update.model_copy(update={"clip": 1e6}),
            "rounds": small.rounds.model_copy(update={"total": 8}),
        }
    )
    trial, _ = try_settings(wild, {}, users, catalogue)
    assert trial.rates is None
    assert trial.note.startswith("diverged")
