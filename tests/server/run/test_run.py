"""A live run: its journal, disk, quality, presence and waiters."""

import json
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs
from world.clock import FakeClock
from world.engine import (
    Bench,
    collect,
    current,
    files,
    gather,
    identity,
    play,
    poll,
    running,
    upload,
)

from fedrec.cli.operating import status_rows
from fedrec.durable import DiskFull
from fedrec.errors import StorageError
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import ClientId, RoundId
from fedrec.plan.schema import EvaluationSettings
from fedrec.wire.admin_link import RunStatus
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.v1 import coordinator_pb2
from fedrec_server.rounds.changes import RoundPublished
from fedrec_server.run.figures import LatestQuality
from fedrec_server.run.journal import log_entry
from fedrec_server.run.presence import BACK_SECONDS, LIVE_SECONDS, Presence
from fedrec_server.run.work import Waiters
from fedrec_server.run_status import status_of
from fedrec_server.service.admin_service import AdminService
from fedrec_server.service.coordinator_service import CoordinatorService
from fedrec_server.store.store import Entry


def entry(line, number, **fields):
    text = json.dumps(fields)
    return Entry(unix_seconds=0.0, kind=line, round=RoundId(number), fields_json=text)


def logged(one, published=7):
    with capture_logs() as lines:
        log_entry("r", one, published=None if published is None else RoundId(published))
    (line,) = lines
    return {name: value for name, value in line.items() if name != "log_level"}


def test_metrics_have_names():
    """Four users with losses of 2 in all; two of four hits, gains of 1.5 in all."""
    sums = dict.fromkeys(METRIC_NAMES, 0) | {
        "participants": 4,
        "loss": 2 << 15,
        "model.validation.users": 4,
        "model.validation.hits": 2,
        "model.validation.gain": 3 << 19,
    }
    line = logged(entry("round published", 3, kind="train", metrics=list(sums.values())))
    assert line == {
        "event": "round published", "run": "r", "round": 3, "kind": "train",
        "loss": 0.5, "validation_hr": 0.5, "validation_ndcg": 0.375,
    }  # fmt: skip


def test_a_round_that_measured_nothing_has_none():
    for metrics in ([], [0] * len(METRIC_NAMES)):
        line = logged(entry("round published", 1, kind="count", metrics=metrics))
        assert line == {"event": "round published", "run": "r", "round": 1, "kind": "count"}


def test_what_is_about_no_round_says_how_far_the_run_is():
    line = logged(entry("run finished", 0, reason="done"))
    assert line == {"event": "run finished", "run": "r", "last_published": 7, "reason": "done"}
    assert "last_published" not in logged(entry("key epoch installed", 0), None)


def disk_row(engine):
    """Return what `fedrec status` says of the disk."""
    found = RunStatus.of(status_of(engine, last_event=0))
    row = dict(status_rows(found)).get("disk", "")
    assert bool(row) == bool(found.disk_full)
    return row


def warnings(lines):
    return [line["event"] for line in lines if line["log_level"] == "warning"]


@pytest.mark.parametrize("where", ["draft.write", "file.rename", "rows.begin", "rows.commit"])
async def test_a_full_disk_is_told_once_a_minute_and_until_it_passed(tmp_path, where):
    bench, clock, full = Bench.of(3, deadline_seconds=600), FakeClock(), set[str]()

    def failpoint(name):
        if name in full:
            raise DiskFull("The disk is full (write: No space left on device).")

    async with running(bench, tmp_path, clock=clock, failpoint=failpoint) as engine:
        await gather(engine, range(3))
        assert not disk_row(engine)
        full.add(where)
        with capture_logs() as lines:
            for _ in range(480):
                clock.advance(0.25)
                with pytest.raises(StorageError):
                    await upload(engine, bench, 0)
                await engine.tick()
            assert "The disk is full (write" in disk_row(engine)
            assert warnings(lines) == ["disk full"] * 2
            full.clear()
            await play(engine, bench, range(3))
            clock.advance(31.0)
            await engine.tick()
            assert not disk_row(engine)
            assert [one["event"] for one in lines].count("disk takes what is written") == 1


async def test_the_reserve_is_part_of_it(tmp_path):
    bench = Bench.of(3)

    store = bench.store(tmp_path, reserve_bytes=1 << 60)
    async with running(bench, tmp_path, store=store) as engine:
        await gather(engine, range(3))
        with capture_logs() as lines:
            for number in range(3):
                with pytest.raises(DiskFull):
                    await upload(engine, bench, number)
        assert warnings(lines) == ["disk full"]
        assert "coordinator.reserve_bytes" in str(lines) and "reserve" in disk_row(engine)
        assert files(tmp_path) == [], "refused before anything is written"


async def test_another_trouble_of_the_disk_is_no_flood_either(tmp_path):
    bench, clock = Bench.of(3), FakeClock()
    broken: set[str] = set()

    def failpoint(name):
        if name in broken:
            raise StorageError("The database cannot be read: disk I/O error.")

    async with running(bench, tmp_path, clock=clock, failpoint=failpoint) as engine:
        broken.add("rows.begin")
        with capture_logs() as lines:
            for _ in range(240):
                clock.advance(0.25)
                await gather(engine, range(3))
            broken.clear()
        assert warnings(lines) == ["storage refused"]
        assert not disk_row(engine)


def sums(**values):
    return [values.get(name.replace(".", "_"), 0) for name in METRIC_NAMES]


# 12 users trained with a mean loss of one quarter; 8 of 40 were hit.
TRAINED = sums(
    participants=12, loss=12 << 13,
    model_validation_users=40, model_validation_hits=8, model_validation_gain=4 << 20,
)  # fmt: skip
LOSS_ONLY = sums(participants=12, loss=12 << 13)
EVALUATED = sums(
    model_test_users=40, model_test_hits=10, model_test_gain=5 << 20,
    untrained_test_users=1000, untrained_test_hits=600,
)  # fmt: skip


class Journal:
    """Stands for a store that has entries and nothing else."""

    def __init__(self, entries):
        self._entries = entries

    def last_entry(self):
        return len(self._entries)

    def entries(self, after, limit):
        return self._entries[after : after + limit]


def published(number, values):
    return RoundPublished(
        round=RoundId(number), kind="train", blob=Blob.of(b""), counted=3, bytes_received=0,
        seconds=1.0, at=0.0, metrics=np.array(values, dtype="<i8").tobytes(),
        rows=StatedRows.whole(1),
    )  # fmt: skip


def test_each_figure_is_that_of_the_last_round_that_measured_it():
    found = LatestQuality()
    assert found.quality.round == 0
    found.on_commit(None, [published(1, sums())])
    assert found.quality.round == 0, "a count measures nothing"
    found.on_commit(None, [published(2, TRAINED), published(3, EVALUATED)])
    quality = found.quality
    assert quality.round == 3
    assert quality.loss == pytest.approx(0.25)
    assert quality.validation is not None and quality.test is not None
    assert (quality.validation.hr, quality.validation.ndcg) == (0.2, 0.1)
    assert (quality.test.hr, quality.test.ndcg) == (0.25, 0.125)
    assert quality.untrained is not None and quality.untrained.hr == 0.6


def test_the_round_is_the_one_that_ranked_even_where_nothing_changed():
    found = LatestQuality()
    found.on_commit(None, [published(2, TRAINED)])
    first = found.quality
    found.on_commit(None, [published(3, TRAINED)])
    assert (first.round, found.quality) == (2, replace(first, round=RoundId(3)))


def test_a_loss_alone_dates_no_rates():
    found = LatestQuality()
    found.on_commit(None, [published(2, LOSS_ONLY)])
    assert found.quality.round == 2, "nothing was ranked yet"
    found.on_commit(None, [published(3, TRAINED), published(4, LOSS_ONLY)])
    assert found.quality.round == 3


@pytest.mark.parametrize("between", [0, 499, 2000])
def test_after_a_restart_the_journal_says_the_same(between):
    def entry(number, text):
        return Entry(
            unix_seconds=0.0, kind="round published", round=RoundId(number), fields_json=text
        )

    entries = [
        entry(2, f'{{"metrics": {TRAINED}}}'),
        *[entry(3, "{}")] * between,
        entry(3, f'{{"metrics": {EVALUATED}}}'),
    ]
    read, noted = LatestQuality(), LatestQuality()
    read.read(Journal(entries))  # type: ignore[arg-type]
    noted.on_commit(None, [published(2, TRAINED), published(3, EVALUATED)])
    assert read.quality == noted.quality


@pytest.mark.parametrize(
    ("protocol", "before", "after"),
    [("full", "", ""), ("sampled", None, "The untrained model gets HR@10 0.60, not 0.10")],
)
async def test_rates_have_their_protocol_and_what_the_last_round_says_of_it(
    tmp_path, protocol, before, after
):
    bench = Bench.of(3)
    evaluation = EvaluationSettings(protocol=protocol)
    plan = bench.federation.plan.model_copy(update={"evaluation": evaluation})
    bench = replace(bench, federation=replace(bench.federation, plan=plan))

    async with running(bench, tmp_path) as engine:
        service = AdminService(engine)
        first = RunStatus.of(await service.GetStatus(None, None))
        engine.quality.on_commit(engine.run.state, (published(2, TRAINED), published(3, EVALUATED)))
        first, last = [first, RunStatus.of(await service.GetStatus(None, None))]
    assert first.protocol == last.protocol == protocol
    assert first.caution == before
    assert last.caution is not None and last.caution.startswith(after)
    assert bool(last.caution) == bool(after)


async def test_a_round_in_progress_waits_for_those_who_did_not_send(tmp_path):
    bench = Bench.of(3)
    labels = [identity(number).public.label for number in range(3)]

    seen = []
    async with running(bench, tmp_path) as engine:
        service = AdminService(engine)

        async def awaited():
            return RunStatus.of(await service.GetStatus(None, None)).awaited

        engine.run.presence.heard(identity(0).client_id)
        seen.append(await awaited())
        await gather(engine, range(3))
        assert current(engine.run.state).phase == "collecting"
        seen.append(await awaited())
        await upload(engine, bench, 1)
        seen.append(await awaited())
    before, begun, after_one = seen
    assert set(before) <= set(labels) - {labels[0]}
    assert begun == tuple(labels)
    assert after_one == (labels[0], labels[2])


NORTH, SOUTH = ClientId("a" * 64), ClientId("b" * 64)


def here():
    clock = FakeClock()
    presence = Presence(clock)
    for client in (NORTH, SOUTH):
        presence.heard(client)
    return clock, presence


async def test_a_download_that_goes_on_is_a_sign_but_no_call(tmp_path):
    bench, clock, slow = Bench.of(3), FakeClock(), identity(2).client_id
    async with running(bench, tmp_path, clock=clock) as engine:
        await collect(engine, bench, range(3))
        run, service = engine.run, CoordinatorService(engine)
        request = coordinator_pb2.FetchPublishedRequest(client_id=slow, run=run.name)
        download = service.FetchPublished(request, None)
        await anext(download)
        async with run.lock:
            await run.fail(run.state.current.number, "a test", StorageError("A test."))
        assert run.presence.is_silent(slow)
        clock.advance(LIVE_SECONDS)
        await anext(download)
        assert run.presence.last_sign(slow) == clock.now()
        assert run.presence.is_silent(slow) and slow not in run.presence.live()
        await download.aclose()
        assert await poll(engine, 2)
        assert not run.presence.is_silent(slow)


def test_a_goodbye_counts_at_once_and_silence_after_a_while():
    clock, presence = here()
    presence.ended(NORTH)
    assert presence.live() == {SOUTH}
    clock.advance(LIVE_SECONDS + 1)
    assert presence.live() == frozenset()
    goodbye = presence.goodbye_of(NORTH)
    assert goodbye is not None and goodbye.had_begun
    assert presence.now() - goodbye.at == LIVE_SECONDS + 1
    assert presence.goodbye_of(SOUTH) is None


def test_who_comes_back_is_simply_back():
    clock, presence = here()
    presence.ended(NORTH)
    clock.advance(BACK_SECONDS - 1)
    assert presence.gone() == frozenset(), "it may be started again at once"
    presence.joined(NORTH)
    assert presence.goodbye_of(NORTH) is None
    clock.advance(BACK_SECONDS)
    assert presence.gone() == frozenset()
    presence.heard(NORTH)
    assert NORTH in presence.live()
    presence.ended(NORTH)
    clock.advance(BACK_SECONDS)
    assert presence.gone() == {NORTH}
    presence.heard(NORTH)
    assert presence.gone() == frozenset() and NORTH in presence.live()


def test_the_poll_of_a_client_that_ended_does_not_bring_it_back():
    _, presence = here()
    with presence.waiting(NORTH):
        assert presence.waiters == {NORTH}
        presence.ended(NORTH)
        assert presence.waiters == frozenset()
        assert presence.live() == {SOUTH}
    assert presence.live() == {SOUTH}
    with presence.waiting(NORTH):
        assert presence.live() == {NORTH, SOUTH}
    assert presence.live() == {NORTH, SOUTH}


def test_an_error_before_the_first_question_is_one_of_starting():
    clock, presence = here()
    presence.ended(NORTH, "training")
    goodbye = presence.goodbye_of(NORTH)
    assert goodbye is not None and goodbye.had_begun
    clock.advance(1.0)
    presence.joined(NORTH)
    presence.ended(NORTH, "data")
    goodbye = presence.goodbye_of(NORTH)
    assert goodbye is not None and not goodbye.had_begun and goodbye.code == "data"
    presence.ended(NORTH, "data")
    again = presence.goodbye_of(NORTH)
    assert again is not None and not again.had_begun
    never = ClientId("c" * 64)
    presence.ended(never, "keys")
    found = presence.goodbye_of(never)
    assert found is not None and not found.had_begun


async def test_news_between_two_waits_ends_the_next_one():
    waiters: Waiters[str] = Waiters()
    with waiters.listening("one") as news:
        waiters.wake(["one"])
        assert await news.wait(60.0)
        assert await news.wait(60.0), "what was told stands until it is looked at"
        news.forget()
        assert not await news.wait(0.0)


async def test_only_those_who_are_meant_hear():
    waiters: Waiters[str] = Waiters()
    with (
        waiters.listening("one") as first,
        waiters.listening("one") as again,
        waiters.listening("two") as other,
    ):
        waiters.wake(["one", "nobody"])
        assert await first.wait(0.0) and await again.wait(0.0)
        assert not await other.wait(0.0)
        waiters.wake_all()
        assert await other.wait(0.0)
    assert not waiters, "who left is forgotten"
