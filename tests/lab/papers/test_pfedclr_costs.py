"""The space table of PFedCLR: every printed value by rule."""

import pytest

from fedrec_lab.papers.costs import SPACE


@pytest.mark.parametrize("row", SPACE, ids=lambda row: row.name)
def test_every_printed_value_follows_from_the_rules(row):
    client, server = row.by_rule
    assert f"{client:.4f}" == f"{row.client_mb:.4f}"
    assert f"{server:.4f}" == f"{row.server_mb:.4f}"


def test_ml_100k_by_hand():
    """944 tables of 1,682 x 16 numbers; a client's table, vector, A (1,682 x 2) and B (2 x 16)."""
    (row,) = [row for row in SPACE if row.name == "pfedclr/ml-100k"]
    assert row.server_bytes == 944 * 1682 * 16 * 4
    assert row.client_bytes == (1682 * 16 + 16 + 1682 * 2 + 2 * 16) * 4
    assert row.by_rule[1] == pytest.approx(96.9121, abs=5e-5)


def test_lastfm_has_the_users_that_are_left():
    """With the 1,600 users and 12,454 items of the paper's table of data nothing fits."""
    found = {row.by_rule for row in SPACE if row.dataset == "lastfm-2k"}
    assert {round(server, 4) for _, server in found} == {955.1355}
    stated = 1601 * 12454 * 64 / 2**20
    assert abs(stated - 955.1355) > 250
