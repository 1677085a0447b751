"""Studies: trials on validation, what counts again, and which trial is best."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from fedrec.data import generate, leave_one_out
from fedrec.environment import provenance_of
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import Rates
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation.seeds import OnValidation
from fedrec_lab.tuning.report import figures_of, importance_of, text_of, write_study
from fedrec_lab.tuning.space import contenders_of
from fedrec_lab.tuning.study import Study, StudyTask, Trial, run_study

BASE = {
    "federation.minimum_item_users": 3,
    "federation.maximum_users": 64,
    "algorithm.name": "fedals",
    "algorithm.dim": 4,
    "update.structure": "dense",
    "protection.name": "none",
    "rounds.total": 2,
    "client.device": "cpu",
    "client.threads": 1,
}
TRIES = ("algorithm.alpha=1,5",)


@pytest.fixture(scope="module")
def planted():
    made = generate(n_users=60, n_items=120, n_clusters=4, interactions_per_user=12, seed=8)
    return leave_one_out(made.interactions, made.catalogue), made.catalogue


@pytest.fixture
def task(planted, tmp_path):
    users, catalogue = planted
    return StudyTask(users=users, catalogue=catalogue, folder=tmp_path, tries=TRIES)


def contenders(*names, **changes):
    return contenders_of(None, BASE | changes, {}, names)


def test_trials_are_measured_on_validation_and_never_on_test(task, planted, tmp_path):
    users, _ = planted
    study = run_study(contenders(), task)
    assert study.finished
    assert [dict(trial.values) for trial in study.trials] == [{}, {"algorithm.alpha": 1.0}]
    assert study.popularity is not None
    # With other test items nothing changes.
    moved = replace(users, test_items=users.test_items[::-1].copy())
    again = run_study(contenders(), replace(task, users=moved, folder=tmp_path / "moved"))
    assert [each.ndcg for each in again.trials] == [each.ndcg for each in study.trials]


def test_a_stopped_study_goes_on_and_trains_nothing_twice(task):
    seen = []
    stopped = run_study(
        contenders(), replace(task, seeds=(1, 2)), tell=seen.append, stop=lambda: bool(seen)
    )
    assert not stopped.finished
    assert len(seen) == 1 == len(stopped.trials)
    study = run_study(contenders(), replace(task, seeds=(1, 2)), tell=seen.append)
    assert study.finished
    assert [trial.number for trial in seen] == [0, 1]
    assert set(study.trials[0].runs) == {1, 2}
    assert not (task.folder / "trainings").exists()
    # More values: what is trained counts.
    more = replace(task, tries=("algorithm.alpha=1,5,20",))
    wider = run_study(contenders(), more, tell=seen.append)
    assert [dict(trial.values) for trial in seen[2:]] == [{"algorithm.alpha": 20.0}]
    assert wider.finished


def test_a_folder_of_other_data_or_settings_is_refused(task, planted):
    users, _ = planted
    run_study(contenders(), task, stop=lambda: True)
    moved = replace(users, test_items=users.test_items[::-1].copy())
    with pytest.raises(SettingsError, match="different settings, data"):
        run_study(contenders(), replace(task, users=moved))
    with pytest.raises(SettingsError, match="different settings, data"):
        run_study(contenders(**{"rounds.total": 3}), task)
    (task.folder / "rounds.jsonl").touch()
    with pytest.raises(SettingsError, match="folder of a simulation"):
        plan = contenders()[0].load({}).plan
        RunFolder(task.folder).go_on(provenance_of(plan, "cpu"), accepted=False)
    with pytest.raises(SettingsError, match="number of clients"):
        run_study(contenders(), replace(task, n_clients=2))


def test_algorithms_are_compared_with_the_same_number_of_trials(task):
    names = ("sketch", "fedals", "ease")
    study = run_study(contenders(*names), replace(task, tries=(), trials=2, sampler="random"))
    assert [trial.algorithm for trial in study.trials[:2]] == ["fedals", "fedals"]
    found = {name: [each for each in study.trials if each.algorithm == name] for name in names}
    assert {name: len(own) for name, own in found.items()} == dict.fromkeys(names, 2)
    assert study.best_of_algorithms()[0] is study.best
    assert {each.algorithm for each in study.best_of_algorithms()} == set(names)
    assert study.rival().algorithm != study.best.algorithm


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tries": (f"algorithm.dim={','.join(map(str, range(1, 12)))}",
                    f"rounds.total={','.join(map(str, range(1, 101)))}")}, "1100 combinations"),
        ({"sampler": "grid", "trials": 1}, "grid has 2 combinations"),
    ],
)  # fmt: skip
def test_too_many_combinations_are_refused(task, changes, word):
    with pytest.raises(SettingsError, match=word):
        run_study(contenders(), replace(task, **changes))


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(SettingsError, match="'als'"):
        contenders("fedals", "als")


def test_settings_that_diverge_are_told_and_not_fatal(task):
    wild = {
        "algorithm.name": "fedmf",
        "algorithm.learning_rate": 1000.0,
        "update.clip": 1e6,
        "rounds.total": 8,
    }
    study = run_study(contenders(**wild), replace(task, tries=("algorithm.dim=4",)))
    assert study.best is None
    assert study.trials[0].note.startswith("diverged")
    assert "Every training diverged." in list(text_of(study))


def trial(number, ndcg, ranks=(), algorithm="fedals", **values):
    rates = None if ndcg is None else Rates(users=9, hr=0, recall=0, ndcg=ndcg, mrr=0)
    settings = contenders()[0].load({})
    return Trial(
        algorithm=algorithm,
        number=number,
        values=values if number else {},
        tried=values,
        settings=settings,
        runs={1: OnValidation(rates=rates, ranks=tuple(ranks), note="")},
    )


def study_of(*trials):
    return Study(at=10, trials=trials, tried={"fedals": ()}, notes=(), finished=True)


def test_the_best_comes_first_and_the_diverged_last():
    found = study_of(trial(0, 0.0), trial(1, None), trial(2, 0.3), trial(3, 0.3))
    assert [each.number for each in found.ranked()] == [2, 3, 0, 1]
    assert found.rival().number == 0, "the starting settings"


def test_a_validation_set_too_small_to_choose_is_told_with_its_interval():
    few = study_of(trial(0, 0.5, [0.0, 9.0, 9.0]), trial(1, 0.6, [0.0, 0.0, 9.0], alpha=5))
    assert "3 validation users are too few" in few.undecided()
    assert "[" in few.undecided()
    many = study_of(trial(0, 0.5, [9.0] * 200), trial(1, 0.6, [0.0] * 200, alpha=5))
    assert many.undecided() == ""


@pytest.mark.slow
def test_the_folder_has_trials_figures_and_the_best_settings(task):
    tries = ("algorithm.alpha=1,3,5", "algorithm.regularisation=3,10,20")
    study = run_study(contenders(), replace(task, tries=tries))
    write_study(study, RunFolder(task.folder))
    table = pq.read_table(task.folder / "trials.parquet")
    assert table.num_rows == len(study.trials) == 9
    assert {"algorithm.alpha", "ndcg", "seed", "trial"} <= set(table.column_names)
    names = {figure.name for figure in figures_of(study)}
    assert names == {"history", "importance-fedals", "slice-fedals-algorithm-alpha",
                     "slice-fedals-algorithm-regularisation"}  # fmt: skip
    drawn = {path.name for path in (task.folder / "figures").iterdir()}
    assert {f"{name}.svg" for name in names} <= drawn
    assert (task.folder / "best.toml").is_file()


def test_importance_finds_the_setting_that_matters(task):
    study = run_study(contenders(), task, stop=lambda: True)
    (alpha,) = study.tried["fedals"]
    beta = replace(alpha, key="beta", values=(1.0, 2.0))
    pairs = [(a, b) for a in (1.0, 5.0) for b in (1.0, 2.0)] * 3
    done = [
        trial(number, 0.1 * a + 0.001 * b, **{"algorithm.alpha": a, "beta": b})
        for number, (a, b) in enumerate(pairs)
    ]
    importance = importance_of(done, (alpha, beta))
    # Means .1 and .5 (and .001 and .002), both balanced: shares of .04 and 2.5e-7.
    assert list(importance) == ["algorithm.alpha", "beta"]
    assert importance["beta"] == pytest.approx(2.5e-7 / (0.04 + 2.5e-7))
    assert importance_of(done[:3], (alpha, beta)) == {}
