"""Several protocols measured in one training."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from lab.simulation.runs import run

from fedrec.evaluation.metrics import Rates
from fedrec.ids import RoundId
from fedrec_lab.reports.round_report import ProtocolRates, RoundReport

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(settings_of, data):
    full = settings_of(rounds={"total": 3})
    sampled = settings_of(rounds={"total": 3}, evaluation={"protocol": "sampled"})
    return (
        run(full, data, also=("sampled",)),
        run(sampled, data, also=("full",), n_clients=3),
        run(full, data),
    )


def test_full_and_sampled_measure_the_same_training(results):
    """Each is the plan's protocol once; whose it is and the grouping of users change nothing."""
    full, sampled, _ = results
    for one, other in zip(full.rounds, sampled.rounds, strict=True):
        assert one.loss == other.loss
        if one.kind != "count":
            assert one.also == (
                ProtocolRates(protocol="sampled", validation=other.validation, test=other.test),
            )
            assert other.also[0].test == one.test
    own, others = full.evaluations, sampled.evaluations
    for protocol in ("full", "sampled"):
        assert own[protocol].rates("popularity", "test") == others[protocol].rates(
            "popularity", "test"
        )
    assert full.chosen("sampled") == sampled.chosen("sampled")
    assert own["sampled"].rates("local", "test") is None
    assert others["full"].rates("local", "test").users == 60


def test_a_further_protocol_changes_nothing_else(results):
    full, _, plain = results
    assert full.best.shared.canonical_bytes() == plain.best.shared.canonical_bytes()
    without = [replace(report, also=(), seconds=0.0) for report in full.rounds]
    assert without == [replace(report, seconds=0.0) for report in plain.rounds]
    assert plain.protocols == ("full",)
    assert full.protocols == ("full", "sampled")


def rates(ndcg: float) -> Rates:
    return Rates(users=9, hr=ndcg, recall=ndcg, ndcg=ndcg, mrr=ndcg)


def report(number: int, own: tuple[float, float], other: tuple[float, float]) -> RoundReport:
    return RoundReport(
        round=RoundId(number),
        kind="train",
        loss=0.5,
        participants=9,
        clipped_values=0,
        clipped_users=0,
        abstained=0,
        validation=rates(own[0]),
        test=rates(own[1]),
        seconds=1.0,
        vector_bytes=8,
        n_clients=1,
        also=(ProtocolRates(protocol="sampled", validation=rates(other[0]), test=rates(other[1])),),
    )


def test_each_protocol_chooses_on_its_own_validation(results):
    """Never on test, where the other rounds are better; of equals the earliest."""
    rounds = (
        report(2, (0.2, 0.5), (0.1, 0.9)),
        report(3, (0.3, 0.1), (0.4, 0.2)),
        report(4, (0.3, 0.8), (0.2, 0.9)),
    )
    chosen = replace(results[2], rounds=rounds)
    assert chosen.chosen("full") == (2, rates(0.1))
    assert chosen.chosen("sampled") == (2, rates(0.2))
    assert chosen.chosen("paper") is None


def test_a_report_survives_json_and_old_lines_are_read():
    written = report(2, (0.2, 0.5), (0.1, 0.9))
    assert RoundReport.from_json(written.to_json()) == written
    old = json.loads(written.to_json())
    del old["also"]
    assert RoundReport.from_json(json.dumps(old)) == replace(written, also=())
