"""A coordinator over gRPC with three clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server.support.federations import Bench
from server.support.serving import Serving, serving

CLIENTS = range(3)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Serving]:
    with serving(Bench.of(3), tmp_path) as found:
        yield found


@pytest.fixture
def collecting(plain: Serving) -> Serving:
    plain.come(CLIENTS)
    return plain
