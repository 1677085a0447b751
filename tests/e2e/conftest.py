"""Commands that end with their test."""

import pytest
from command import fedrec
from world.kits import commands

__all__ = ["fedrec"]


@pytest.fixture
def start():
    """Start commands that end with the test."""
    with commands() as started:
        yield started
