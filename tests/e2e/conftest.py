"""Commands that end with their test."""

import pytest
from world.kits import commands


@pytest.fixture
def start():
    """Start commands that end with the test."""
    with commands() as started:
        yield started
