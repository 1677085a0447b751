"""A client that took part in a run, and recommends from what it has."""

import pytest
from world.fake_federation import World


@pytest.fixture
def world(tmp_path):
    """A federation in memory after a count and two rounds of training."""
    made = World(tmp_path)
    made.whole_round(1, "count")
    made.whole_round(2)
    made.whole_round(3)
    made.app().run()
    return made
