"""Updates that wait together: one transaction, a refusal for each, and never a lost file."""

import asyncio

import pytest
from world.engine import Bench, gather, identity, pieces, play, running, together, upload

from fedrec.errors import FedrecError, MalformedUpdate, RoundClosed, StorageError
from fedrec.ids import RoundId
from fedrec_server.store.durable_files import DurabilityLost


class Failpoints:
    """Notes every failpoint; raises at one of them while `failing` names it."""

    def __init__(self):
        self.seen: list[str] = []
        self.failing = ""
        self.error: Exception = StorageError("The disk is full.")

    def __call__(self, name):
        self.seen.append(name)
        if name == self.failing:
            raise self.error


async def malformed(engine, bench, number):
    """Upload bytes that are signed, complete and no update."""
    payload = bytes(len(bench.payload(number, 1)))
    round_ = engine.run.state.current
    header = bench.header(number, round_.number, payload, engine.run.name, kind=round_.kind)
    return await engine.updates.receive(header, pieces(payload))


def updates(folder):
    return {path.name for path in (folder / "state" / "updates").iterdir()}


def files_of(*numbers):
    return {f"00000001-{identity(number).client_id}" for number in numbers}


def published_sum(engine, round_id):
    record = engine.run.store.published(RoundId(round_id))
    return engine.run.store.spool.read(record.name, record.blob)


async def test_updates_that_wait_together_share_a_transaction(tmp_path):
    bench = Bench.of(4)
    points = Failpoints()

    async with running(bench, tmp_path, failpoint=points) as engine:
        await gather(engine, range(4))
        async with together(engine, *(upload(engine, bench, n) for n in range(3))) as found:
            assert updates(tmp_path) == files_of(0, 1, 2), "durable before they are counted"
            points.seen.clear()
        assert found == [False] * 3
        assert points.seen.count("rows.committed") == 1
        assert points.seen.index("rows.committed") < points.seen.index("update.ack")
        assert points.seen.count("update.ack") == 3
        await upload(engine, bench, 3)
        await engine.run.work.settled()
        assert published_sum(engine, 1) == bench.sum_of(set(range(4)), 1)


async def test_a_malformed_update_is_refused_alone(tmp_path):
    bench = Bench.of(4)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(4))
        uploads = (
            upload(engine, bench, 0),
            malformed(engine, bench, 1),
            upload(engine, bench, 2),
        )
        async with together(engine, *uploads) as found:
            pass
        assert found[0] is False and found[2] is False
        assert isinstance(found[1], MalformedUpdate)
        assert updates(tmp_path) == files_of(0, 2)
        for number in (1, 3):
            assert not await upload(engine, bench, number)
        await engine.run.work.settled()
        assert published_sum(engine, 1) == bench.sum_of(set(range(4)), 1)


async def test_an_update_that_breaks_the_adding_is_refused_alone(tmp_path, monkeypatch):
    bench = Bench.of(4)
    bad = identity(1).client_id

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(4))
        add = engine.collection.add

        def breaking(counted, header, payload):
            # What a library raises that was handed nonsense, with the sum half changed.
            add(counted, header, payload)
            if header.client_id == bad:
                raise RuntimeError("half way")

        with monkeypatch.context() as patch:
            patch.setattr(engine.collection, "add", breaking)
            async with together(engine, *(upload(engine, bench, n) for n in range(3))) as found:
                pass
        assert isinstance(found[1], RuntimeError)
        assert [found[0], found[2]] == [False, False]
        assert updates(tmp_path) == files_of(0, 2)
        for number in (1, 3):
            assert not await upload(engine, bench, number)
        await engine.run.work.settled()
        assert published_sum(engine, 1) == bench.sum_of(set(range(4)), 1)


async def test_one_more_than_the_round_counts_is_told_so(tmp_path):
    bench = Bench.of(4, clients_per_round=3, over_provision=2.0)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(4))
        async with together(engine, *(upload(engine, bench, n) for n in range(4))) as found:
            pass
        counted = {number for number in range(4) if found[number] is False}
        (late,) = set(range(4)) - counted
        assert isinstance(found[late], RoundClosed)
        await engine.run.work.settled()
        assert published_sum(engine, 1) == bench.sum_of(counted, 1)
        assert updates(tmp_path) == set()


@pytest.mark.parametrize("where", ["rows.begin", "rows.commit"])
async def test_a_commit_that_fails_counts_none_and_the_sum_is_made_again(tmp_path, where):
    bench = Bench.of(4)
    points = Failpoints()

    async with running(bench, tmp_path, failpoint=points) as engine:
        await gather(engine, range(4))
        await upload(engine, bench, 0)
        uploads = (
            upload(engine, bench, 1),
            malformed(engine, bench, 2),
            upload(engine, bench, 3),
        )
        async with together(engine, *uploads) as found:
            points.failing = where
        points.failing = ""
        assert isinstance(found[0], StorageError) and isinstance(found[2], StorageError)
        assert isinstance(found[1], MalformedUpdate), "its own refusal, not the store's"
        assert updates(tmp_path) == files_of(0)
        for number in (3, 2, 1):
            assert not await upload(engine, bench, number)
        await engine.run.work.settled()
        assert published_sum(engine, 1) == bench.sum_of(set(range(4)), 1)


@pytest.mark.parametrize("where", ["rows.begin", "rows.committed"])
async def test_what_is_unknown_is_not_acknowledged_and_keeps_its_file(tmp_path, where):
    bench = Bench.of(3)
    points = Failpoints()
    points.error = DurabilityLost("no answer from the disk")
    counted = [0, 1] if where == "rows.committed" else []

    async with running(bench, tmp_path, failpoint=points) as engine:
        await gather(engine, range(3))
        async with together(engine, *(upload(engine, bench, n) for n in (0, 1))) as found:
            points.failing = where
        points.failing = ""
        assert [type(each) for each in found] == [DurabilityLost] * 2
        assert engine.run.work.lost.is_set()
        assert updates(tmp_path) == files_of(0, 1)
    async with running(bench, tmp_path) as engine:
        assert updates(tmp_path) == files_of(*counted), "without a row a file is swept"
        for number in range(3):
            assert await upload(engine, bench, number, round_id=1) is (number in counted)
        await engine.run.work.settled()
        assert published_sum(engine, 1) == bench.sum_of(set(range(3)), 1)


@pytest.mark.parametrize("where", ["draft.synced", "folder.synced"])
async def test_the_round_ends_before_a_durable_update_is_counted(tmp_path, where):
    """Its file is gone with the round, whether it had its final name already or not."""
    bench = Bench.of(3)

    loop = asyncio.get_running_loop()
    ending: list[object] = []

    def failpoint(name):
        if name == where and ending == []:
            ending.append(name)
            asyncio.run_coroutine_threadsafe(end_round(), loop).result(60)

    async def end_round():
        await engine.stop_run(at_once=True)
        while list((tmp_path / "state" / "partial").iterdir()):
            await asyncio.sleep(0)

    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        await gather(engine, range(3))
        with pytest.raises(RoundClosed):
            await upload(engine, bench, 0)
        await engine.run.work.settled()
        assert engine.run.state.abandoned == 1
        assert updates(tmp_path) == set()


async def test_a_damaged_file_refuses_all_that_wait_and_the_run_goes_on(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(3))
        await upload(engine, bench, 0)
        (update,) = (tmp_path / "state" / "updates").iterdir()
        update.write_bytes(b"?" * update.stat().st_size)
        engine.collection.forget()
        async with together(engine, upload(engine, bench, 1), upload(engine, bench, 2)) as found:
            pass
        assert [type(each) for each in found] == [RoundClosed] * 2
        await engine.run.work.settled()
        assert engine.run.state.abandoned == 1 and updates(tmp_path) == set()
        await play(engine, bench, range(3))
        assert engine.run.state.published == 4


async def test_a_failure_while_the_round_is_given_up_acknowledges_nothing(tmp_path):
    bench = Bench.of(3)
    points = Failpoints()

    async with running(bench, tmp_path, failpoint=points) as engine:
        await gather(engine, range(3))
        await upload(engine, bench, 0)
        (update,) = (tmp_path / "state" / "updates").iterdir()
        whole = update.read_bytes()
        update.write_bytes(b"?" * len(whole))
        engine.collection.forget()
        async with together(engine, upload(engine, bench, 1), upload(engine, bench, 2)) as found:
            points.failing = "rows.begin"
        points.failing = ""
        assert all(isinstance(each, FedrecError) for each in found)
        update.write_bytes(whole)
        for number in (1, 2):
            assert not await upload(engine, bench, number)
        await engine.run.work.settled()
        assert published_sum(engine, 1) == bench.sum_of(set(range(3)), 1)
