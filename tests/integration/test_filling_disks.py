"""A client's and a key authority's disk that fill again and again, at any write of any round."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from filling_disk import Disk
from integration.support.bench import merged, plan_of
from integration.support.checks import check_against_one_process

from fedrec.durable import DiskFull
from fedrec_authority.folder.authority_folder import AuthorityFolder

MOST_WRITES = 30
"""More than the writes of one commit, which begins anew where one of them fails."""
MORE = [pytest.param(seed, marks=pytest.mark.long) for seed in range(3)]


def gaps(seed: int) -> Iterator[int]:
    """Yield how many writes succeed in between."""
    draw = random.Random(seed)
    while True:
        yield draw.randrange(MOST_WRITES)


@pytest.mark.parametrize("seed", [0, *MORE[1:]])
def test_a_client_goes_on(found, monkeypatch, seed):
    federation = found(plan_of(("bfv", "masks", "none")[seed % 3]))
    disk = Disk(federation.bench.state(2), gaps(seed))
    disk.install(monkeypatch)
    for number in range(2):
        federation.client(number)
    told, ends = [], 0
    while True:
        client = federation.client(2)
        try:
            client.result()
            break
        except DiskFull as error:
            # At its start it ends, and whoever started it starts it again.
            ends += 1
            assert "cannot be" in error.message and ends < 20
        finally:
            told += [event.name for event in client.events]
    assert disk.refused.total() > 5 and "disk_full" in told
    assert {federation.bench.model(number) for number in range(3)} == {merged().model}


@pytest.mark.parametrize("seed", MORE)
def test_a_key_authority_goes_on(found, revealing, monkeypatch, seed):
    federation = found(plan_of("bfv", key_holder="authority"))
    keys = AuthorityFolder(federation.bench.workspace.folder / "keys")
    disk = Disk(keys.private, gaps(seed))
    disk.install(monkeypatch)
    events = revealing(federation)
    federation.start_all()
    check_against_one_process(federation)
    assert disk.refused.total() > 5 and "disk full" in {event.name for event in events}
    assert {federation.bench.model(n) for n in range(3)} == {merged().model}
    opened = [event.round for event in events if event.name == "sum revealed"]
    assert opened == [published.round for published in federation.published()]
