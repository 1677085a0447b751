"""Scenario 5: however often and by whomever an update is sent, it counts once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from reference.plain_parts import split
from world.engine import Bench, identity
from world.machine import terms_of
from world.serving import serving

from fedrec.errors import ConflictingUpload
from fedrec.ids import RoundId

CLIENTS = range(3)


def test_scenario_05_five_at_once_over_grpc(tmp_path):
    """One contribution, the sum unchanged, and the same answer to all five senders."""
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found, ThreadPoolExecutor(5) as threads:
        found.come(CLIENTS)
        duplicates = list(threads.map(lambda _: found.upload(0), range(5)))
        assert sorted(duplicates) == [False, True, True, True, True]
        assert not found.upload(1)
        assert not found.upload(2)
        assert published(found) == bench.sum_of(set(CLIENTS), 1)


def test_scenario_05_two_processes_with_one_identity(tmp_path):
    """Both train and randomise on their own: the first durable update stays, whoever asks."""
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found:
        found.come(CLIENTS)
        found.upload(0)
        other = bench.payload(0, 1, salt=7)
        seen = terms_of(found.coordinator.engine.run.state)
        header = bench.header(0, 1, other, found.run, **seen)
        for _ in range(3):
            with found.link() as link, pytest.raises(ConflictingUpload):
                link.submit_update(header, other)
        assert found.upload(0), "the same again is a duplicate"
        found.upload(1)
        found.upload(2)
        assert published(found) == bench.sum_of(set(CLIENTS), 1)
        with found.link() as link, pytest.raises(ConflictingUpload):
            link.submit_update(header, other)


def test_scenario_05_repeated_chunks(tmp_path):
    """A stream that begins again at 0 is the same update, not a second one."""
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found:
        found.come(CLIENTS)
        payload = bench.payload(0, 1)
        header = bench.header(
            0, 1, payload, found.run, **terms_of(found.coordinator.engine.run.state)
        )
        chunks = list(split(payload))
        assert not found.submit(header, *chunks, *chunks, *chunks).duplicate
        for number in (1, 2):
            found.upload(number)
        assert published(found) == bench.sum_of(set(CLIENTS), 1)


def published(found):
    """Return the first round's published sum."""
    found.do(found.coordinator.engine.run.work.settled())
    with found.link() as link:
        round_ = link.published(identity(0).client_id, found.run, RoundId(0))
    assert len(round_.contributions) == 3
    return round_.blob
