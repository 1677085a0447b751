"""Table 2 of the CoLR paper: the printed minutes by the paper's model, and those timed here."""

import pytest

from fedrec_lab.papers.costs import TIMES, computation_minutes, own_times

ROWS = {row.name: row for row in TIMES}


def test_every_row_of_the_paper_is_there():
    ranks = [f"{name}/rank-{rank}" for name in ("colr", "svd") for rank in (1, 2, 4, 8, 16, 32)]
    ratios = [f"topk/{kept}-of-64" for kept in (1, 2, 4, 8, 16)]
    assert list(ROWS) == ["fedmf", *ranks, *ratios]


@pytest.mark.parametrize("row", TIMES, ids=list(ROWS))
def test_the_printed_numbers_agree_with_each_other(row):
    """Totals are sums up to rounding, and minutes on the link follow from the numbers sent."""
    assert row.total_minutes == pytest.approx(
        row.link_minutes + row.computation_minutes, abs=0.0151
    )
    assert round(own_times(row, timed=False).link_minutes, 2) == row.link_minutes


def test_the_model_by_hand():
    """1000 rounds of 10 s are 166.67 minutes; .02 s of a client, .004 s of the server add 2.4."""
    assert computation_minutes(0, 0) == pytest.approx(166.6667, abs=1e-4)
    assert computation_minutes(0.02, 0.004) == pytest.approx(1000 * (0.14 + 10 + 0.004) / 60)


@pytest.mark.slow
def test_seconds_are_measured():
    found = own_times(ROWS["topk/1-of-64"])
    assert found.client_seconds is not None and found.client_seconds > 0
    assert found.server_seconds is not None and found.server_seconds > 0
    assert found.computation_minutes == computation_minutes(
        found.client_seconds, found.server_seconds
    )
