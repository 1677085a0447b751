"""Lists of every method: with one test item for each user, they have the table's own rates."""

import pytest

from fedrec.algorithms import FedRAPSettings
from fedrec.updates.update import UpdateSettings
from fedrec_lab.comparison.comparing import compare
from fedrec_lab.comparison.list_measurement import ListMeasurement

RATES = ("hr", "ndcg", "mrr")


def lists_and_table(small, planted, *references, **changes):
    users, catalogue = planted
    lists = ListMeasurement((small.evaluation.at,))
    found = compare(
        small.model_copy(update=changes),
        users=users,
        catalogue=catalogue,
        protocols=("full", "paper"),
        references=references,
        n_clients=2,
        budget=1,
        lists=lists,
    )
    measured = {
        row.method: [getattr(row.rates, name) for name in RATES]
        for row in lists.rows
        if row.group == "all"
    }
    table = {
        row.method: [row.result("full").mean(name) for name in RATES]
        for row in found.table.rows
        if row.method in measured and row.result("full") is not None
    }
    return measured, table


def test_every_method_has_the_rates_of_its_row(small, planted):
    tail = small.client.model_copy(update={"tail": True, "tail_minimum_users": 1})
    federation = small.federation.model_copy(update={"minimum_item_users": 6})
    measured, table = lists_and_table(
        small, planted, "ease", "centralised-mf", client=tail, federation=federation
    )
    assert measured.keys() == table.keys()
    assert measured.keys() == {
        "fedmf", "popularity", "tail_at_home", "local", "ease", "ease-all-rows", "centralised-mf",
    }  # fmt: skip
    # Popularity's row has the counts of rows that may travel.
    for name in measured.keys() - {"popularity"}:
        # A tail has equal scores: lists have them in the catalogue's order, ranks half a place.
        close = 1e-3 if name == "tail_at_home" else 1e-5
        assert measured[name] == pytest.approx(table[name], abs=close), name
    assert measured["tail_at_home"] != measured["fedmf"]


@pytest.mark.long
def test_centrap_has_the_lists_of_its_best_round(small, planted):
    measured, table = lists_and_table(
        small,
        planted,
        "centrap",
        algorithm=FedRAPSettings(dim=4),
        update=UpdateSettings(structure="dense", clip=16.0),
    )
    assert measured["centrap"] == pytest.approx(table["centrap"], abs=1e-5)
