"""Newer epochs at the coordinator: what is refused, when one begins, and what a kill leaves."""

import asyncio
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from blake3 import blake3
from world.cells import partition_after
from world.clock import FakeClock
from world.engine import (
    Bench,
    act,
    authority,
    collect,
    gather,
    identity,
    poll,
    running,
    upload,
    wait,
)

from fedrec.errors import (
    KeysError,
    NotInRoster,
    ProtocolError,
    RoundClosed,
    SettingsError,
)
from fedrec.identity.authority import Authority
from fedrec.ids import RoundId
from fedrec.wire.messages import Train, Wait
from fedrec_server.engine import Engine
from fedrec_server.store.durable_files import own_models_name


class Killed(BaseException):
    """What a kill looks like from inside."""


def epoch(bench, number, *members, by=None):
    """Return a later epoch of some clients."""
    roster = bench.federation.keys.roster
    people = [identity(member).public for member in members]
    return (by or authority()).new_epoch(
        federation=roster.federation,
        epoch=number,
        members=people,
        minimum_summands=roster.minimum_summands,
        protection=roster.protection,
        protection_fingerprint=roster.protection_fingerprint,
        server_context=bench.federation.keys.server_context,
        protection_secret=b"",
        partition=partition_after(roster.partition, people, number),
    )


def after(bench, keys):
    """Return the bench whose clients speak of another epoch."""
    return replace(bench, federation=replace(bench.federation, keys=keys))


async def test_a_joiner_waits_for_the_round_and_a_removal_does_not(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(3))
        await upload(engine, bench, 0)
        joined = epoch(bench, 2, 0, 1, 2, 3)
        with engine.run.watchers.listening("operator") as news:
            assert await engine.rotation.install(joined.to_json()) == (2, False)
            assert await news.wait(0.0), "the journal says it before the round ends"
        assert (await poll(engine, 1)).epoch == 1
        with pytest.raises(NotInRoster):
            await poll(engine, 3)
        await upload(engine, bench, 1)
        await upload(engine, bench, 2)
        await engine.run.work.settled()
        assert engine.run.state.published == 1 and engine.run.state.rules.epoch == 2
        assert isinstance((await poll(engine, 3)).task, Train | Wait)

        later = after(bench, joined)
        await gather(engine, range(4))
        assert engine.run.state.current is not None
        await upload(engine, later, 3)
        removed = epoch(bench, 3, 0, 1, 2)
        assert await engine.rotation.install(removed.to_json()) == (3, True)
        assert engine.run.state.abandoned == 1 and engine.run.state.abandonments.in_row == 0
        with pytest.raises(NotInRoster):
            await poll(engine, 3)
        with pytest.raises(RoundClosed, match="epoch 2 is over"):
            await upload(engine, later, 0, 2)


async def test_models_of_members_that_left_are_emptied(tmp_path):
    """At once, or at the next start if the process was killed before."""
    bench, values = Bench.of(3), b"a user's table"
    own = [own_models_name(RoundId(1), identity(number).client_id) for number in range(3)]

    async with running(bench, tmp_path) as engine:
        await collect(engine, bench, range(3))
        spool = engine.run.store.spool
        for name in own:
            spool.write(f"{name}-0", blake3(values).digest() + values)

        def kept():
            return [spool.open_described(f"{name}-0")[0].length for name in own]

        await engine.rotation.install(epoch(bench, 2, 0, 1).to_json())
        await engine.run.work.settled()
        assert kept() == [len(values), len(values), 0]
        spool.write(f"{own[2]}-0", blake3(values).digest() + values)
    async with running(bench, tmp_path) as engine:
        await engine.run.work.settled()
        assert kept() == [len(values), len(values), 0]


async def test_abandoning_for_an_epoch_never_ends_a_run(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(3))
        assert engine.run.state.current is not None
        await engine.rotation.install(epoch(bench, 2, 1, 2, 3).to_json())
        assert engine.run.state.ending is None
    async with running(bench, tmp_path) as engine:
        assert engine.run.state.ending is None and engine.run.state.abandonments.in_row == 0
        assert engine.run.state.rules.epoch == 2


async def test_waiting_clients_hear_at_once(tmp_path):
    bench = Bench.of(4)

    async with running(bench, tmp_path) as engine:
        waits = [asyncio.ensure_future(wait(engine, number)) for number in (0, 1)]
        await asyncio.sleep(0)
        await engine.rotation.install(epoch(bench, 2, 0, 2, 3).to_json())
        seen = await waits[0]
        assert seen.epoch == 2 and isinstance(seen.task, Wait)
        with pytest.raises(NotInRoster):
            await waits[1]


async def test_an_epoch_that_begins_while_a_client_is_looked_at_is_told_at_once(tmp_path):
    """Their polls are about to open a round when the epoch begins."""
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        reached, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def held():
            reached.release()
            await go_on.wait()
            await engine.advance()

        engine.run.advance = held
        for number in range(3):
            engine.run.presence.heard(identity(number).client_id)
        waits = [asyncio.ensure_future(wait(engine, number)) for number in (0, 1)]
        for _ in waits:
            await reached.acquire()
        later = epoch(bench, 2, 0, 3, 4)
        assert await engine.rotation.install(later.to_json()) == (2, True)
        go_on.set()
        seen = await asyncio.wait_for(waits[0], 20)
        assert seen.epoch == 2 and isinstance(seen.task, Wait)
        with pytest.raises(NotInRoster):
            await asyncio.wait_for(waits[1], 20)


async def test_an_epoch_that_begins_between_two_polls_is_told_once_at_once(tmp_path):
    """While it fetched the round that ended the epoch, say."""
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        assert (await poll(engine, 0)).epoch == 1
        await engine.rotation.install(epoch(bench, 2, 0, 3, 4).to_json())
        seen = await asyncio.wait_for(wait(engine, 0), 20)
        assert seen.epoch == 2 and isinstance(seen.task, Wait)
        waiting = asyncio.ensure_future(wait(engine, 0))
        engine.run.presence.heard(identity(3).client_id)
        engine.run.presence.heard(identity(4).client_id)
        await engine.tick()
        assert isinstance((await asyncio.wait_for(waiting, 20)).task, Train)


def refused(bench):
    """Return epochs that may not be installed, and why."""
    good = epoch(bench, 5, 0, 1, 2)
    roster = good.roster
    swapped = replace(
        roster,
        members=(
            *roster.members[:2],
            replace(roster.members[2], exchange_key=identity(9).public.exchange_key),
        ),
    )
    return {
        "older": (epoch(bench, 1, 0, 1, 2).to_json(), "Epoch 1 is not above 2"),
        "foreign": (epoch(bench, 9, 0, 1, 2, by=Authority.create()).to_json(), "signed epoch"),
        "forged": (good.to_json().replace(b'\\"epoch\\":5', b'\\"epoch\\":6'), "signature"),
        "swapped exchange key": (
            good.to_json().replace(roster.to_json()[1:-1], swapped.to_json()[1:-1])
            if roster.to_json()[1:-1] in good.to_json()
            else good.to_json().replace(
                roster.to_json().decode().replace('"', '\\"').encode(),
                swapped.to_json().decode().replace('"', '\\"').encode(),
            ),
            "signature",
        ),
        "other settings": (
            epoch(Bench.of(3, values=7, epoch=2), 5, 0, 1, 2).to_json(),
            "other settings",
        ),
        "nonsense": (b"{}", "lacks the field"),
        "no JSON": (b"nonsense", "not valid JSON"),
    }


@pytest.mark.parametrize("name", refused(Bench.of(3)))
async def test_refused_epochs_change_nothing(tmp_path, name):
    bench = Bench.of(3, epoch=2)
    raw, words = refused(bench)[name]

    async with running(bench, tmp_path) as engine:
        with pytest.raises(ProtocolError, match=words):
            await engine.rotation.install(raw)
        assert engine.run.state.rules.epoch == 2 and engine.rotation.next is None
        assert engine.run.store.installed_epoch() is None


async def test_the_newest_epoch_wins_over_the_settings(tmp_path):
    first, third = Bench.of(3), Bench.of(3, epoch=3)

    async with running(first, tmp_path) as engine:
        await engine.rotation.install(epoch(first, 2, 0, 1, 2).to_json())
        again = epoch(first, 2, 0, 1, 2)
        with pytest.raises(ProtocolError, match="not above 2"):
            await engine.rotation.install(again.to_json())
    async with running(first, tmp_path) as engine:
        assert engine.run.federation.keys.roster.epoch == engine.run.state.rules.epoch == 2
    async with running(third, tmp_path) as engine:
        assert engine.run.state.rules.epoch == 3
        (kept,) = (tmp_path / "state" / "epochs").iterdir()
        assert kept.read_bytes() == third.federation.keys.to_json()
    async with running(first, tmp_path) as engine:
        assert engine.run.federation.keys == third.federation.keys
    other = after(first, epoch(first, 3, 0, 1, 2))
    with (
        closing(other.store(tmp_path)) as store,
        pytest.raises(KeysError, match="Epoch 3 is not above 3"),
    ):
        Engine(other.federation, store, clock=FakeClock(), maximum_upload_bytes=1)


def test_an_older_file_is_refused_where_nothing_newer_was_installed(tmp_path):
    with closing(Bench.of(3, epoch=3).store(tmp_path)):
        pass
    with pytest.raises(SettingsError, match="epoch 1 is older than 3"):
        Bench.of(3).store(tmp_path)


async def test_a_newer_file_of_another_authority_is_not_used(tmp_path):
    bench = Bench.of(3)
    foreign = after(bench, epoch(bench, 9, 0, 1, 2, by=Authority.create()))

    async with running(bench, tmp_path) as engine:
        await engine.rotation.install(epoch(bench, 2, 0, 1, 2).to_json())
    with (
        closing(foreign.store(tmp_path)) as store,
        pytest.raises(KeysError, match="signed epoch"),
    ):
        Engine(foreign.federation, store, clock=FakeClock(), maximum_upload_bytes=1)
    async with running(bench, tmp_path) as engine:
        assert engine.run.state.rules.epoch == 2


async def test_a_stored_epoch_of_another_authority_is_not_used(tmp_path):
    bench = Bench.of(3)
    foreign = replace(bench.federation, keys=epoch(bench, 1, 0, 1, 2, by=Authority.create()))

    async with running(bench, tmp_path) as engine:
        await engine.rotation.install(epoch(bench, 2, 0, 1, 2).to_json())
    with pytest.raises(KeysError, match="signed epoch"):
        async with running(replace(bench, federation=foreign), tmp_path):
            pass


def test_killed_at_every_point_of_installing(tmp_path):
    """The epoch is there as a whole or not at all, and handing it in again is enough."""
    bench = Bench.of(3)
    later = epoch(bench, 2, 1, 2, 3)

    def killer(at, passed):
        def failpoint(name):
            if installing[0]:
                passed.append(name)
                if len(passed) == at:
                    raise Killed

        return failpoint

    installing = [False]

    async def scenario(folder, at, passed):
        """Kill while a round is in progress, which the epoch ends."""
        engine = Engine(
            bench.federation,
            bench.store(folder, failpoint=killer(at, passed)),
            clock=FakeClock(),
            maximum_upload_bytes=1 << 20,
            failpoint=killer(at, passed),
        )
        try:
            await engine.start()
            await gather(engine, range(3))
            await upload(engine, bench, 0)
            installing[0] = True
            await engine.rotation.install(later.to_json())
            await engine.run.work.settled()
        finally:
            installing[0] = False
            await engine.run.work.settled()
            engine.run.store.close()
            engine.run.work.close()

    async def recovered(folder):
        async with running(bench, folder) as engine:
            assert engine.run.state.rules.epoch in (1, 2)
            await engine.rotation.install(later.to_json())
            await engine.run.work.settled()
            assert engine.run.state.rules.epoch == 2
            assert engine.run.state.roster == {identity(n).client_id for n in (1, 2, 3)}
            assert engine.run.state.abandoned == 1, "the acknowledged update's round says why"
            entries = [e for e in engine.run.store.entries(0, 100) if e.kind == "round abandoned"]
            assert ["the key epoch changed" in e.fields_json for e in entries] == [True]
            assert len(list((folder / "state" / "epochs").iterdir())) == 1
            speaking = after(bench, later)
            await gather(engine, (1, 2, 3))
            for number in (1, 2, 3):
                assert engine.run.state.current is not None
                header = engine.run.state.current
                payload = speaking.payload(number, header.number)
                assert payload and isinstance((await poll(engine, number)).task, Train)

    calm: list[str] = []
    asyncio.run(scenario(tmp_path / "calm", 0, calm))
    assert {"draft.write", "file.rename", "folder.fsync", "rows.commit", "epoch.ack"} <= set(calm)
    for at in range(1, len(calm) + 1):
        folder = tmp_path / f"at-{at}"
        passed: list[str] = []
        # Files of the round that ended are deleted behind the caller's back.
        with suppress(Killed):
            asyncio.run(scenario(folder, at, passed))
        assert len(passed) >= at
        asyncio.run(recovered(folder))
    assert Counter(calm)["rows.commit"] >= 2


async def test_a_round_goes_on_with_the_next_epochs_clients(tmp_path):
    """The whole run, with an epoch after every published round; everything is counted."""
    bench = Bench.of(3)

    speaking, number = bench, 1
    async with running(bench, tmp_path) as engine:
        while engine.run.state.ending is None:
            await gather(engine, range(3))
            for client in range(3):
                await act(engine, speaking, client)
            if engine.run.state.ending is None:
                number += 1
                keys = epoch(bench, number, 0, 1, 2)
                await engine.rotation.install(keys.to_json())
                while engine.run.state.rules.epoch < number:
                    for client in range(3):
                        await act(engine, speaking, client)
                speaking = after(bench, keys)
        assert engine.run.state.ending.reason == "all rounds are published"
        assert engine.run.state.abandoned == 0
