"""What a comparison says about a published figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrec.errors import StorageError
from fedrec.evaluation.metrics import Protocol, Rates
from fedrec_lab.papers import ROWS
from fedrec_lab.papers.comparison import Measured, MeasuredRow

ROW = ROWS["pfedrec/ml-100k"]  # published .7162 / .4344


def rates(hr: float, ndcg: float = 0.25) -> Rates:
    return Rates(users=943, hr=hr, recall=hr, ndcg=ndcg, mrr=0.2)


def measured(hr: float, protocol: Protocol = "paper", seed: int = 1) -> Measured:
    return Measured(
        protocol=protocol,
        seed=seed,
        best_round=80,
        validation=rates(hr),
        test=rates(hr),
        references={"popularity": rates(0.4)},
        clipped_values=0,
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("hr", "verdict"),
    [
        (0.7162, "reproduced within one point: +0.00 points of HR@10"),
        (0.7262, "reproduced within one point: +1.00 points of HR@10"),
        (0.7062, "reproduced within one point: -1.00 points of HR@10"),
        (0.7264, "not reproduced: +1.02 points of HR@10"),
        (0.7060, "not reproduced: -1.02 points of HR@10"),
    ],
)
def test_one_point_decides(hr, verdict):
    assert MeasuredRow(row=ROW, measured=(measured(hr),)).verdict == verdict


def test_the_mean_of_seeds_decides():
    found = MeasuredRow(row=ROW, measured=(measured(0.70, seed=1), measured(0.73, seed=2)))
    assert found.difference == pytest.approx(0.715 - 0.7162)
    # Two values, .03 apart: their sample deviation is .03 / sqrt(2).
    assert found.table()[0] == ["pfedrec/ml-100k", "0.7162 / 0.4344", "0.7150 ± 0.0212 / 0.2500"]


def test_no_verdict_without_the_paper_s_own_run():
    honest = MeasuredRow(row=ROW, measured=(measured(0.7162, "sampled"),))
    assert honest.reproduced is None
    assert honest.verdict == "no verdict: the paper's protocol was not run"
    changed = MeasuredRow(row=ROW, measured=(measured(0.7162),), changes=("3 rounds",))
    assert changed.reproduced is None
    assert changed.verdict == "no verdict, because of 3 rounds: +0.00 points of HR@10"


def test_the_page_has_a_column_for_each_protocol():
    found = MeasuredRow(row=ROW, measured=(measured(0.71), measured(0.55, "sampled")))
    lines = found.markdown().splitlines()
    assert lines[2] == "| HR@10 / NDCG@10 | published | reproduced (paper) | honest (sampled) |"
    assert "| popularity | - | 0.4000 / 0.2500 | 0.4000 / 0.2500 |" in lines
    assert "| know-nothing counter | - | - | - |" in lines
    assert "| no-learning formula | - | - | - |" in lines


def test_the_formula_is_about_the_paper_s_protocol_alone():
    leaking = replace(measured(0.71), no_learning=rates(0.9975, 0.8962))
    found = MeasuredRow(row=ROW, measured=(leaking, measured(0.55, "sampled")))
    assert found.table()[-1] == ["no-learning formula", "-", "0.9975 / 0.8962", "-"]
    assert Measured.from_json(Measured.to_json([leaking])) == (leaking,)


def test_it_is_read_back_as_it_was_written():
    found = measured(0.5)
    assert Measured.from_json(Measured.to_json([found, found])) == (found, found)
    with pytest.raises(StorageError, match="not a result of a row"):
        Measured.from_json("[{}]")
