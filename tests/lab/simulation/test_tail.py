"""Tail at home in a simulation: both figures, and no change of what the federation does."""

import json
from dataclasses import replace

import numpy as np
import pytest
from lab.simulation.runs import run
from world.federation import made_data

from fedrec.cli.main import main
from fedrec.data.interactions import user_groups
from fedrec.data.writing import write_interactions
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import rate_of_users, rates_of_ranks
from fedrec.recommender.tail import TailFigures
from fedrec.settings.schema import Settings
from fedrec_lab.comparison.comparing import compare
from fedrec_lab.simulation import user_ranks, with_tail
from fedrec_lab.simulation.silos_tail import TAIL, SilosTail, check_tail

EASE = {
    # Most items have too few holders: they are what silos score.
    "federation": {"minimum_item_users": 7, "maximum_users": 64},
    "algorithm": {"name": "ease", "regularisation": 5.0},
    "update": {"structure": "dense"},
    "protection": {"name": "none"},
    "rounds": {"total": 1},
    "client": {"device": "cpu", "tail": True, "tail_minimum_users": 2},
}


@pytest.fixture(scope="module")
def measured(data):
    return with_tail(run(Settings.model_validate(EASE), data, n_clients=3))


def test_each_silo_has_its_figures(measured, data):
    users, _ = data
    groups = user_groups(users.user_ids, 3)
    assert [silo.users for silo in measured.tail.silos] == [
        int((users.validation_items[group] >= 0).sum()) for group in groups
    ]
    assert all(silo.n_rows > 5 for silo in measured.tail.silos)
    assert any(silo.weight for silo in measured.tail.silos)
    for silo, group in zip(measured.tail.silos, groups, strict=True):
        assert silo.ndcg >= silo.shared_ndcg
        assert silo.shared_ndcg == pytest.approx(
            rate_of_users(measured.tail.shared[group], 10).mean()
        )


def test_the_model_and_its_metrics_are_the_same(measured, data):
    plain = Settings.model_validate(EASE | {"client": {"device": "cpu"}})
    without = with_tail(run(plain, data, n_clients=3))
    assert without.tail is None
    assert without.best.shared.canonical_bytes() == measured.best.shared.canonical_bytes()
    assert without.evaluation.values.tolist() == measured.evaluation.values.tolist()
    rows = [row for row in measured.rows() if row.label != "ease with tail at home"]
    assert rows == list(without.rows())
    shared, _ = measured.tail.test["full"]
    assert np.array_equal(shared, user_ranks(without).model)


def test_the_table_shows_both(measured):
    model, local, *others = measured.comparison().rows
    assert (model.method, local.method) == ("ease", TAIL)
    shared, with_local = measured.tail.test["full"]
    assert model.samples["full"][0].rates == rates_of_ranks(shared, 10)
    assert local.samples["full"][0].rates == rates_of_ranks(with_local, 10)
    assert local.differences["full"].difference.estimate < 0
    assert "weight" in local.chosen("full")
    assert "on validation changes by" in local.note
    assert not any(row.differences for row in (model, *others))
    assert [row.label for row in measured.rows()[:2]] == [
        f"ease (dense), round {measured.best.round}",
        "ease with tail at home",
    ]


def test_a_comparison_has_its_row(data):
    users, catalogue = data
    found = compare(
        Settings.model_validate(EASE),
        users=users,
        catalogue=catalogue,
        n_clients=3,
        references=(),
        seeds=(1, 2),
    )
    rows = found.table.rows
    assert [row.method for row in rows[:2]] == ["ease", TAIL]
    assert len(rows[1].samples["full"]) == 2
    assert rows[1].differences["full"].difference.low < 0
    assert "seed 1: " in rows[1].note


def tail_with(gain, n_users=200):
    """Half of the users rise from rank 3 to rank 0, or fall, or nothing happens."""
    shared, crossed = np.full(n_users, 3.0), np.full(n_users, 3.0)
    (crossed if gain > 0 else shared)[: n_users // 2 if gain else 0] = 0.0
    silo = TailFigures(weight=1.0, n_rows=9, users=n_users, at=10, shared_ndcg=0.4, ndcg=0.7)
    return SilosTail(silos=(silo,), shared=shared, crossed=crossed, test={})


@pytest.mark.parametrize(
    ("gain", "line"), [(1, "the tail helps"), (0, "is not shown to help"), (-1, "the tail hurts")]
)
def test_validation_says_whether_it_helps(gain, line):
    found = tail_with(gain)
    assert found.helps(10) == (gain > 0)
    assert line in found.verdict(10)
    assert found.weights == "weight 1"
    nowhere = replace(found, silos=(replace(found.silos[0], weight=0.0),))
    assert "weight 0 at every silo" in nowhere.verdict(10)


def test_nothing_to_score_and_nothing_to_choose_with(data):
    client = {"device": "cpu", "tail": True, "tail_minimum_users": 60}
    settings = Settings.model_validate(EASE | {"client": client})
    few = with_tail(run(settings, data, n_clients=3))
    assert [silo.weight for silo in few.tail.silos] == [0.0] * 3
    assert "no item that doesn't travel" in few.tail.verdict(10)
    shared, local = few.tail.test["full"]
    assert np.array_equal(shared, local)
    nothing = tail_with(0, n_users=0)
    assert nothing.gain(10) is None
    assert not nothing.helps(10)
    assert "no weight was chosen" in nothing.verdict(10)


def test_silos_that_are_too_large_are_refused_before_training():
    settings = Settings.model_validate(EASE)
    check_tail(settings, 3 * 8192, 3)
    with pytest.raises(SettingsError, match="8193 users"):
        check_tail(settings, 3 * 8192 + 1, 3)
    check_tail(Settings(), 10**6, 1)


@pytest.mark.slow
def test_simulate_deals_silos_and_says_what_the_tail_is_worth(tmp_path, capsys, monkeypatch):
    made = made_data(n_users=60, n_items=120, n_clusters=3, interactions_per_user=12, seed=8)
    write_interactions(tmp_path / "data.csv", made.interactions)
    text = '[data]\npath = "data.csv"\n[output]\nruns = "runs"\n'
    for section, values in EASE.items():
        text += f"[{section}]\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    (tmp_path / "run.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedrec_lab.reports.html.why_no_figures", lambda: "Without figures.")
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "run.toml", "--accept-exposure", "--json"])
    assert ended.value.code == 0
    line = json.loads(capsys.readouterr().out)
    assert len(line["tail"]) == 3
    assert line["tail"][0]["n_rows"] > 0
    assert [row["method"] for row in line["table"]["rows"][:2]] == ["ease", TAIL]
    assert line["results"][1]["method"] == "ease with tail at home"
