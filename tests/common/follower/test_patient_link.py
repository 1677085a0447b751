"""Patience: full jitter, for ever, and only with what passes by itself."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from world.engine import Bench, identity
from world.fake_federation import World
from world.fake_link import down
from world.machine import terms_of
from world.serving import serving

from fedrec.errors import CorruptUpload, FedrecError, RoundClosed, StorageError, Unreachable
from fedrec.follower.patient_link import Backoff, Meter, Stopped, StopSwitch, patient_link
from fedrec.wire.link import Link


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, protection="none")


def patient(world: World, pauses: list[float], **options: int) -> Link:
    waiting = Backoff(StopSwitch(), sleep=pauses.append, jitter=lambda: 0.5, **options)
    return patient_link(world.link, Meter(), waiting, lambda error: None)


def failing(world: World, *errors: FedrecError) -> None:
    """Let the next calls fail, each with one of these errors."""
    left = list(errors)

    def fail(name: str) -> None:
        if left:
            raise left.pop(0)

    world.link.before = fail


def listening(world: World, hear: Callable[[FedrecError], None], **options: Any) -> Link:
    """Return a patient link that waits no time, and tells what it waits for."""
    waiting = Backoff(StopSwitch(), sleep=lambda seconds: None, jitter=lambda: 0.5)
    return patient_link(world.link, Meter(), waiting, hear, **options)


def test_pauses_double_up_to_a_cap(world):
    pauses: list[float] = []
    world.link.before = down(world, "federation", 9)
    patient(world, pauses).federation(world.identity.client_id)
    assert pauses == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_a_call_that_failed_is_no_long_poll_when_it_is_repeated(world, monkeypatch):
    asked: list[float] = []

    def next_task(*args: object, wait_seconds: float) -> None:
        asked.append(wait_seconds)
        if len(asked) < 2:
            raise Unreachable("no answer")

    monkeypatch.setattr(world.link, "next_task", next_task)
    for _ in range(2):
        patient(world, []).next_task("client", "run", 0, wait_seconds=20.0)
    assert asked == [20.0, 0.0, 20.0]


def test_a_trouble_is_told_once_and_counted(world):
    """Not for ever, as whoever listens would hear it."""
    away = Unreachable("no answer")
    failing(world, *[away] * 4, *[StorageError("full")] * 2, away)
    seen, counted = list[str](), list[int]()
    link = listening(world, lambda error: seen.append(error.message), on_answer=counted.append)
    link.federation(world.identity.client_id)
    assert seen == ["no answer", "full", "no answer"] and counted == [7]
    link.federation(world.identity.client_id)
    assert counted == [7]


def test_a_trouble_is_the_same_whatever_its_incident(world):
    errors = [StorageError(f"Storage is unavailable. (incident 00{n})") for n in (2, 1, 0)]
    for error in errors:
        error.incident = error.message[-4:-1]
    failing(world, *errors)
    seen: list[FedrecError] = []
    listening(world, seen.append).federation(world.identity.client_id)
    assert [error.incident for error in seen] == ["002"]


def test_it_gives_up_when_told_to(world):
    pauses: list[float] = []
    world.link.before = down(world, "federation", 9)
    with pytest.raises(Unreachable):
        patient(world, pauses, maximum_attempts=3).federation(world.identity.client_id)
    assert len(pauses) == 2


def test_it_gives_up_where_the_last_attempt_allowed_was_cut(world):
    failing(world, Unreachable("no answer"), CorruptUpload("cut"), Unreachable("no answer"))
    with pytest.raises(Unreachable):
        patient(world, [], maximum_attempts=2).federation(world.identity.client_id)
    assert len(world.link.calls) == 3


@pytest.mark.parametrize(("error", "tries"), [(CorruptUpload, 5), (RoundClosed, 1)])
def test_what_does_not_pass_is_raised(world, error, tries):
    failing(world, *[error("no")] * 9)
    with pytest.raises(error):
        patient(world, []).federation(world.identity.client_id)
    assert len(world.link.calls) == tries


def test_an_upload_that_was_cut_goes_on_after_a_long_outage(world):
    """Nine unanswered calls, and four of whose bytes some are missing."""
    failing(world, *[Unreachable("no answer")] * 9, *[CorruptUpload("cut")] * 4)
    patient(world, []).federation(world.identity.client_id)
    assert len(world.link.calls) == 14


def test_a_coordinator_with_a_full_disk_is_waited_for(world):
    failing(world, *[StorageError("full")] * 3)
    patient(world, []).federation(world.identity.client_id)
    assert len(world.link.calls) == 4


def test_stopping_ends_the_waiting(world):
    stop = StopSwitch()
    world.link.before = down(world, "federation", 99)
    waiting = Backoff(stop, sleep=lambda seconds: stop.request(), jitter=lambda: 1.0)
    with pytest.raises(Stopped):
        patient_link(world.link, Meter(), waiting, lambda error: None).federation(
            world.identity.client_id
        )


def test_limits_of_the_coordinator_are_waited_for(tmp_path):
    """An upload beside as many broken ones as a client may have, or above a limit set too low."""
    bench, left = Bench.of(3), threading.Event()

    def silent() -> Iterator[bytes]:
        left.wait(20)
        yield from ()

    with serving(bench, tmp_path) as found, found.channel() as broken, found.link() as bare:
        found.come(range(3))
        engine = found.coordinator.engine
        payload = bench.payload(0, 1)
        header = bench.header(0, 1, payload, found.run, **terms_of(engine.run.state))
        method = broken.stream_unary("/fedrec.wire.v1.Coordinator/SubmitUpdate")
        calls = [method.future(silent(), timeout=20) for _ in range(20)]
        stop, seen = StopSwitch(), list[str]()

        def trouble(error: FedrecError) -> None:
            seen.append(error.message)
            if "uploads open" not in error.message:
                # The operator's limit, put right.
                engine.admission._maximum_upload_bytes = 1 << 20
                return
            left.set()
            engine.admission._maximum_upload_bytes = 1

        try:
            link = patient_link(bare, Meter(), Backoff(stop), trouble)
            while not seen:
                # Streams are counted once their calls have arrived.
                assert link.submit_update(header, payload) in (True, False)
        finally:
            left.set()
            for call in calls:
                call.cancel()
        assert "uploads open at once" in seen[0]
        assert all("were announced, but at most 1 are allowed" in text for text in seen[1:])
        assert list(engine.run.state.current.accepted) == [identity(0).client_id]
