"""What must hold at the end of a federation, whoever came, went or lied."""

from __future__ import annotations

import numpy as np
from integration.support.bench import accepted, compute, federal
from integration.support.parties import Federation


def check_against_one_process(federation: Federation, *, floor: int = 1) -> list[frozenset[int]]:
    """Compare everything with the same accepted sets in one process; return the sets.

    Args:
        floor: every client's `client.minimum_own_item_users`.
    """
    bench = federation.bench
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    rounds = accepted(bench, federation.published())
    wanted = compute(bench.plan, bench.users(), rounds, floor=floor)
    assert federal(federation.metrics()) == federal(wanted.metrics)
    for number in range(bench.n_clients):
        assert bench.model(number) == wanted.model
        kept, expected = bench.private(number).tensors, wanted.private[number].tensors
        assert kept.keys() == expected.keys()
        assert all(np.array_equal(kept[name], values) for name, values in expected.items())
    return [played.clients for played in rounds]
