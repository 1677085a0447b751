"""What a demonstration's comparison says, and what it says of sums that differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrec.evaluation.metrics import Rates
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec_lab.comparison.measurement import Measurement
from fedrec_lab.demo.further_runs import UnencryptedRun, differing_rounds, differing_tensors
from fedrec_lab.reports.federation_record import RunView
from fedrec_lab.reports.round_report import RoundReport

RATES = Rates(users=3, hr=0.5, recall=0.5, ndcg=0.25, mrr=0.25)


def report(number: int) -> RoundReport:
    return RoundReport(
        round=RoundId(number),
        kind="train",
        loss=0.5,
        participants=3,
        clipped_values=0,
        clipped_users=0,
        abstained=0,
        validation=RATES,
        test=RATES,
        seconds=float(number),
        vector_bytes=100,
        n_clients=1,
    )


def model(**changed: float) -> SharedState:
    table, bias = np.zeros((4, 2)), np.zeros(4)
    table[1, 1] = changed.get("table", 0.0)
    return SharedState({"item_bias": bias, "item_embedding": table}, np.arange(4))


ROUNDS = [report(number) for number in range(1, 10)]


def test_seconds_clients_and_bytes_are_no_differences():
    others = [replace(one, seconds=9.0, n_clients=3, vector_bytes=7) for one in ROUNDS]
    assert differing_rounds(ROUNDS, others) == []


def test_rounds_and_fields_are_named():
    others = list(ROUNDS)
    others[2] = replace(others[2], loss=0.75)
    others[4] = replace(others[4], test=replace(RATES, ndcg=0.5), clipped_users=1)
    assert differing_rounds(ROUNDS, others) == [
        "round 3, metrics: loss 0.75, not 0.5",
        "round 5, metrics: clipped_users 1, not 0; test NDCG 0.5, not NDCG 0.25",
    ]


def test_of_many_rounds_the_first_are_named():
    others = [replace(one, loss=None) for one in ROUNDS]
    found = differing_rounds(ROUNDS, others)
    assert found[0] == "round 1, metrics: loss None, not 0.5"
    assert len(found) == 6
    assert found[-1] == "and 4 more rounds, the last one round 9"


def test_rounds_that_are_missing():
    assert differing_rounds(ROUNDS, ROUNDS[:-1]) == ["8 rounds were published, 9 in one process"]


def test_tensors_are_named_with_what_differs():
    assert differing_tensors("the latest model", model(), model()) == []
    assert differing_tensors("the latest model", model(), model(table=-0.25)) == [
        "the latest model, item_embedding: 1 of 8 values, by up to 0.25"
    ]
    short = SharedState({"item_bias": np.zeros(3)})
    assert differing_tensors("it", model(), short) == ["it, item_bias: its shape is another"]


def measured(label: str, rank: float) -> Measurement:
    return Measurement(
        method=label, label=label, protocol="full", seed=1, rates=RATES, ranks=(rank, rank),
        chosen="lambda 100",
    )  # fmt: skip


def test_differences_come_with_intervals(comparison: UnencryptedRun) -> None:
    """Ranks of 0 and 9 are worth 1 and 1 / log2(11); equal ones show no difference."""
    assert comparison.differences(comparison.measured[1:]) == [
        "own: NDCG@10 minus that of popularity: +0.7109 [+0.7109, +0.7109], 95% interval over "
        "2 users.",
        "own: NDCG@10 minus that of ease: = +0.0000 [+0.0000, +0.0000], 95% interval over "
        "2 users: no difference is shown.",
    ]
    assert [(row.label, row.note) for row in comparison.rows] == [("ease", "lambda 100")]


@pytest.fixture
def comparison():
    return UnencryptedRun(
        test=RATES,
        rounds=tuple(ROUNDS),
        best=model(),
        latest=model(),
        measured=(measured("own", 0.0), measured("popularity", 9.0), measured("ease", 0.0)),
    )


def view(rounds: list[RoundReport], *abandoned: str) -> RunView:
    return RunView(planned=9, at=10, rounds=rounds, abandoned=list(abandoned))


def test_the_same(comparison):
    verdict = comparison.judge(view(ROUNDS), {"best": model(), "latest": model()})
    assert verdict.differences == ()
    assert comparison.sentences(verdict)[0] == (
        "Without encryption, in one process, every round's sums are the same."
    )


def test_not_the_same(comparison):
    """Also where only the model shows it: a round's metrics are of the version before."""
    verdict = comparison.judge(view(ROUNDS), {"best": model(), "latest": model(table=1e-9)})
    assert verdict.differences == (
        "the latest model, item_embedding: 1 of 8 values, by up to 1e-09",
    )
    assert comparison.sentences(verdict)[0].endswith(
        "sums are NOT the same: the latest model, item_embedding: 1 of 8 values, by up to 1e-09."
    )


def test_nothing_is_promised_of_sums_that_are_not_exact(comparison):
    verdict = comparison.judge(view(ROUNDS[:-1]), None)
    assert verdict.differences == ()
    assert "only approximate them" in comparison.sentences(verdict)[0]


def test_a_round_that_was_given_up_leaves_out_a_number(comparison):
    later = [*ROUNDS[:2], *(replace(one, round=RoundId(one.round + 1)) for one in ROUNDS[2:])]
    models = {"best": model(), "latest": model()}
    assert comparison.judge(view(later, "too few clients"), models).text == "the same."
    other = {"best": model(table=1.0), "latest": model(table=1.0)}
    verdict = comparison.judge(view(later, "too few clients"), other)
    assert len(verdict.differences) == 2 and verdict.text.startswith("NOT the same")
