"""Rounds of a run that never happened."""

from __future__ import annotations

import pytest

from fedrec.evaluation.metrics import Rates
from fedrec.ids import RoundId
from fedrec_lab.reports.round_report import RoundReport


def rates(ndcg: float, hr: float = 0.2) -> Rates:
    return Rates(users=50, hr=hr, recall=hr, ndcg=ndcg, mrr=ndcg / 2)


@pytest.fixture
def rounds():
    """A counting round, three training rounds and the evaluation."""
    kinds = ["count", "train", "train", "train", "evaluate"]
    return tuple(
        RoundReport(
            round=RoundId(number),
            kind=kind,
            loss=0.7 / number if kind == "train" else None,
            participants=50 if kind == "train" else 0,
            clipped_values=number,
            clipped_users=1,
            abstained=0,
            validation=rates(0.02 * number) if kind != "count" else None,
            test=rates(0.015 * number) if kind != "count" else None,
            seconds=0.1 + 0.2,
            vector_bytes=123_456,
            n_clients=3,
        )
        for number, kind in enumerate(kinds, start=1)
    )
