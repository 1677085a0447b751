"""What a terminal and a notebook show of values: short, escaped, and as frames."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec import Interactions, load_settings
from fedrec.data import Catalogue, generate, leave_one_out
from fedrec.model.state import PrivateState, SharedState
from fedrec.showing import bars, html_table

MOST_CHARACTERS = 400


@pytest.mark.slow
def test_no_value_fills_the_screen(ml_100k, ml_100k_interactions, ml_100k_users):
    settings = load_settings(algorithm="fedals", environ={})
    values = (ml_100k_interactions, ml_100k.catalogue, ml_100k_users, settings, settings.plan)
    shown = [repr(value) for value in values]
    assert [text for text in shown if len(text) > MOST_CHARACTERS] == []
    assert shown[0] == "Interactions(100,000 rows, 943 users, 1,682 items, with times)"
    assert shown[1].startswith("Catalogue(1,682 items, version 1, ")
    assert shown[2].startswith("UserSplit(943 users, 98,114 training items")


def test_settings_show_what_differs_from_the_defaults():
    settings = load_settings(values={"algorithm.name": "fedals", "rounds.total": 5}, environ={})
    assert "rounds=RoundSettings(total=5)" in repr(settings)
    assert "seed" not in repr(settings)


def test_html_is_escaped_and_cut():
    found = Interactions.from_arrays(["<b>"] * 3, ["x", "y", "z"], [1, 2, 3])
    catalogue = Catalogue.of(["x", "y", "z"], ["<script>", "", ""])
    split = leave_one_out(found, catalogue)
    for value in (found, catalogue, split, load_settings(environ={})):
        html = value._repr_html_()
        assert "<table>" in html
        assert "<script>" not in html
    assert "<svg" in found._repr_html_()
    many = Interactions.from_arrays(range(12_345), [0] * 12_345)
    assert "<td>12,345</td>" in many._repr_html_()
    untitled = Catalogue.of(map(str, range(12)))._repr_html_()
    assert "title" not in untitled.partition("</caption>")[2]
    assert "2 more rows" in untitled
    made = generate(n_users=300, n_items=90, n_clusters=3, interactions_per_user=10, seed=1)
    assert len(repr(made)) < MOST_CHARACTERS
    assert "<svg" in split._repr_html_()
    assert "7 more rows" in html_table(("n",), ([n] for n in range(57)), caption="")
    assert bars({}, caption="").count("<rect") == 0


def test_states_show_shapes():
    assert repr(PrivateState.of({})) == "PrivateState(no tensors)"
    shared = SharedState({"item_embedding": np.zeros((1682, 64))}, trained=3)
    assert repr(shared) == "SharedState(3 training rounds, item_embedding (1682, 64))"
