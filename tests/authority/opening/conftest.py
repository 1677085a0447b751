"""Which sums an authority opened."""

from __future__ import annotations

import pytest
from world.fake_link import put_watch


@pytest.fixture
def key(monkeypatch):
    """Watch the secret key."""
    return put_watch(monkeypatch)
