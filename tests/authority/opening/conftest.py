"""Which sums an authority opened."""

import pytest
from world.fake_link import put_watch


@pytest.fixture
def key(monkeypatch):
    """Watch the secret key."""
    return put_watch(monkeypatch)
