"""The plan's rule of the fewest clients in a sum, for every protection and all who hold to it."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from world.machine import rules

from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS

FLOORS = tuple(product((1, 2, 3, 7), (1, 3, 5), (1, 4, 9)))
"""`rounds.minimum_clients`, `rounds.minimum_summands` and the roster's own floor."""


@pytest.mark.parametrize("holder", ["authority", "members"])
@pytest.mark.parametrize("name", PROTECTIONS)
def test_fewest_summands(name, holder):
    """Without protection it is `minimum_clients`, else the largest of all floors, 3 at least."""
    kind = PROTECTIONS[name]
    for clients, summands, floor in FLOORS:
        section: dict[str, Any] = {"name": name}
        if kind.needs_reveal:
            section["key_holder"] = holder
        rounds = {"minimum_clients": clients, "minimum_summands": summands}
        plan = Plan.model_validate({"protection": section, "rounds": rounds})
        found = replace(
            rules(needs_reveal=kind.needs_reveal),
            hides_updates=kind.hides_updates,
            rounds=plan.rounds,
            fewest_revealed=floor,
        )
        if name == "none":
            assert found.needed == plan.fewest_summands == clients
        else:
            assert plan.fewest_summands == max(clients, summands, 3)
            assert found.needed == max(clients, summands, 3, floor)


def test_rounds_of_a_run():
    """A count round, the training rounds and one that measures."""
    assert Plan.model_validate({"rounds": {"total": 7}}).rounds.published == 9
