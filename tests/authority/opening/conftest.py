"""Which sums an authority opened."""

from __future__ import annotations

import pytest
from client.support.key_watch import put_watch


@pytest.fixture
def key(monkeypatch):
    """Watch the secret key."""
    return put_watch(monkeypatch)
