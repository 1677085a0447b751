"""A coordinator over gRPC with three clients."""

import pytest
from world.engine import Bench
from world.serving import serving

CLIENTS = range(3)


@pytest.fixture
def plain(tmp_path):
    with serving(Bench.of(3), tmp_path) as found:
        yield found


@pytest.fixture
def collecting(plain):
    plain.come(CLIENTS)
    return plain
