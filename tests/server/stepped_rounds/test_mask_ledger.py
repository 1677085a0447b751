"""Masked rounds' ledger, key rotation and messages committed together."""

import asyncio
import json
import sqlite3

import pytest
from world.engine import gather, identity, wait
from world.light import Masked, epoch_of, federation_of, masked, signed

from fedrec.errors import ConflictingUpload, NotInRoster, ProtocolError, RoundClosed, StorageError
from fedrec.ids import RoundId
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import PrivacySettings
from fedrec.privacy import BUDGET_SPENT
from fedrec.protection import Masks
from fedrec_server import stepped_rounds
from fedrec_server.rounds.selection import has_all

TRAIN = 2
"""The round after the count is the first one that is noisy."""


def noisy(n_clients=4, mechanism="gaussian", **rounds):
    privacy = PrivacySettings.model_validate(
        {"mechanism": mechanism, "noise_multiplier": 4.0, "epsilon": 100.0}
    )
    return federation_of(n_clients, privacy=privacy, **rounds)


@pytest.mark.parametrize("rounds", [{}, {"minimum_clients": 9}, {"minimum_summands": 7}])
def test_rounds_are_never_smaller_than_the_shares_of_noise_assume(rounds):
    """Shares are (z C)^2 / n: with no fewer than n summands a sum has all of (z C)^2."""
    federation = noisy(12, **rounds)
    found = mechanism_of(federation.plan)
    wanted = 4.0 * found.bound
    for n_summands in (federation.rules("run").needed, 12):
        assert n_summands * found.share**2 >= wanted**2
    assert federation.rules("run").needed == max(3, *rounds.values(), 0)


def rows_of(folder):
    """Return the rounds that the ledger on disk counts."""
    with sqlite3.connect(folder / "state" / "coordinator.sqlite") as rows:
        return [row[0] for row in rows.execute("SELECT round FROM ledger ORDER BY round")]


async def to_training(world, phase):
    """Publish the count, and bring the first training round to a phase."""
    while world.engine.run.state.published < TRAIN - 1:
        await world.all_act()
    await world.engine.tick()
    await world.to_phase(phase)


def charged_by_journal(engine):
    """Return the rounds that the journal says are charged."""
    found = engine.run.store.entries(0, 10_000)
    return [entry.round for entry in found if json.loads(entry.fields_json).get("charged")]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
async def test_it_counts_the_round_before_the_first_answer(tmp_path, mechanism):
    async with masked(tmp_path, 4, federation=noisy(mechanism=mechanism)) as world:
        await to_training(world, "signing")
        assert (world.engine.run.state.charged, rows_of(tmp_path)) == (0, [])
        await world.to_phase("unmasking")
        assert not world.round.sent("answer")
        assert (world.engine.run.state.charged, rows_of(tmp_path)) == (1, [TRAIN])
        await world.to_end()
        # Neither the count nor the evaluation, and the training round once.
        assert (world.engine.run.state.charged, rows_of(tmp_path)) == (1, [TRAIN])
        assert charged_by_journal(world.engine) == [TRAIN]


@pytest.mark.parametrize(("phase", "charged"), [("signing", 0), ("unmasking", 1)])
async def test_an_abandoned_round_is_paid_for_once_it_could_be_read(tmp_path, phase, charged):
    federation = noisy(3)

    async with masked(tmp_path, 3, federation=federation) as world:
        await to_training(world, phase)
        await world.all_act(without=[2])
        world.clock.advance(100)
        await world.engine.tick()
        assert world.engine.run.state.abandoned == 1
        assert world.engine.run.state.charged == charged
    async with masked(tmp_path, 3, federation=federation) as world:
        assert world.engine.run.state.charged == charged == len(rows_of(tmp_path))
        while world.engine.run.state.ending is None:
            await world.engine.tick()
            await world.all_act()
        assert world.engine.run.state.trained == 1
        assert world.engine.run.state.charged == charged + 1


async def test_a_step_that_could_not_be_stored_asks_no_client_for_shares(tmp_path):
    """The charge is in the transaction that begins the answers: without it there are none."""
    failing: list[Masked] = []

    def failpoint(name):
        if name == "rows.begin" and failing and len(failing[0].round.sent("signature")) == 4:
            raise StorageError("The disk is full.")

    async with masked(tmp_path, 4, federation=noisy(), failpoint=failpoint) as world:
        await to_training(world, "signing")
        failing.append(world)
        await world.all_act()
        assert world.round.phase == "signing"
        assert (world.engine.run.state.charged, rows_of(tmp_path)) == (0, [])
        failing.clear()
        await world.engine.tick()
        assert world.round.phase == "unmasking"
        assert rows_of(tmp_path) == [TRAIN]


@pytest.mark.parametrize("phase", ["signing", "unmasking"])
async def test_a_restart_charges_neither_twice_nor_never(tmp_path, phase):
    federation = noisy()

    async with masked(tmp_path, 4, federation=federation) as world:
        await to_training(world, phase)
        await world.act(0)
        clients = world.clients
    async with masked(tmp_path, 4, federation=federation) as world:
        world.clients = clients
        while world.engine.run.state.published < TRAIN:
            await world.all_act()
        assert (world.engine.run.state.charged, rows_of(tmp_path)) == (1, [TRAIN])


async def test_the_run_ends_at_its_budget(tmp_path):
    """z = 4: one round costs epsilon 0.926 and two cost 1.356 by dp-accounting; 1 is for one."""
    privacy = PrivacySettings(
        mechanism="gaussian", noise_multiplier=4.0, epsilon=1.0, rounds_per_user=0
    )
    federation = federation_of(4, privacy=privacy, total=3)

    async with masked(tmp_path, 4, federation=federation) as world:
        await world.to_end()
        assert world.engine.run.state.ending.failed
        assert world.engine.run.state.ending.reason.startswith(BUDGET_SPENT)
        assert world.engine.run.state.trained == world.engine.run.state.charged == 1


BEFORE = ("collecting", "sharing", "masking")
TOLD = ("signing", "unmasking")
PHASES = (*BEFORE, *TOLD)
N_CLIENTS = 5
N_AFTER = 8
"""With three who came: one alone would have no cell to be summed with."""


def later(world, *numbers):
    protection = world.federation.protection
    assert isinstance(protection, Masks)
    return epoch_of(protection, numbers, epoch=2, previous=world.federation.keys.roster)


def counted(world, round_id):
    record = world.engine.run.store.published(RoundId(round_id))
    assert {header.epoch for header in record.contributions} == {record.epoch}
    return {header.client_id for header in record.contributions}


def ids(*numbers):
    return {identity(number).client_id for number in numbers}


@pytest.mark.parametrize("phase", BEFORE)
async def test_without_a_member_the_round_is_abandoned_and_the_next_is_of_the_new_epoch(
    tmp_path, phase
):
    async with masked(tmp_path, N_CLIENTS) as world:
        engine = world.engine
        await world.to_phase(phase)
        for number in (0, 3):
            await world.act(number)
        stale = await world.made(1)
        assert await engine.rotation.install(later(world, 0, 1, 2, 3).to_json()) == (2, True)
        await engine.run.work.settled()
        assert (engine.run.state.abandoned, engine.run.state.abandonments.in_row) == (1, 0)
        assert engine.run.state.rules.epoch == 2
        with pytest.raises(RoundClosed, match="epoch 1 is over"):
            await world.send(stale)
        with pytest.raises(RoundClosed):
            await engine.steps.material(identity(1).client_id, RoundId(1), "shares")
        with pytest.raises(NotInRoster):
            await world.act(4)
        world.enrol(range(4))
        await world.to_sum()
        number = int(engine.run.state.published)
        assert number == 2
        assert counted(world, number) == ids(0, 1, 2, 3)
        assert world.published(number).tolist() == world.sum_of(range(4), number).tolist()
        record = engine.run.store.published(RoundId(number))
        assert record is not None and record.epoch == 2
    with sqlite3.connect(tmp_path / "state" / "coordinator.sqlite") as rows:
        reasons = rows.execute("SELECT reason FROM rounds WHERE phase = 'abandoned'").fetchall()
        kept = rows.execute("SELECT count(*) FROM mask_messages WHERE round = 1").fetchall()
    assert reasons == [("the key epoch changed",)]
    assert kept == [(0,)]


@pytest.mark.parametrize(
    ("phase", "n_after"), [*((phase, N_AFTER) for phase in PHASES), *((phase, 4) for phase in TOLD)]
)
async def test_the_round_ends_in_its_own_epoch(tmp_path, phase, n_after):
    """With more members always, without one once survivors are told: were it given up and repeated
    without that member, the two sums would give its update away.
    """
    async with masked(tmp_path, N_CLIENTS) as world:
        engine = world.engine
        await world.to_phase(phase)
        await world.act(0)
        changed = later(world, *range(n_after))
        assert await engine.rotation.install(changed.to_json()) == (2, False)
        await world.to_sum()
        assert counted(world, 1) == ids(*range(N_CLIENTS))
        assert world.published(1).tolist() == world.sum_of(range(N_CLIENTS), 1).tolist()
        assert engine.run.state.rules.epoch == 2
        world.enrol(range(n_after))
        await world.to_end()
        assert engine.run.state.abandoned == 0
        assert counted(world, 3) == ids(*range(n_after))
        wanted = world.sum_of(range(n_after), 3)
        assert world.published(3).tolist() == wanted.tolist()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_restart_begins_the_newest_epoch_and_says_why_the_round_ended(tmp_path, phase):
    federation = federation_of(N_CLIENTS)

    async with masked(tmp_path, N_CLIENTS, federation=federation) as world:
        await world.to_phase(phase)
        await world.act(0)
        joined = later(world, *range(N_AFTER))
        assert await world.engine.rotation.install(joined.to_json()) == (2, False)
    async with masked(tmp_path, N_CLIENTS, federation=federation) as world:
        assert world.engine.run.state.rules.epoch == 2
        assert world.engine.run.state.abandoned == 1
        assert world.engine.run.state.abandonments.in_row == 0
        world.enrol(range(N_AFTER))
        await world.to_sum()
        assert world.engine.run.state.published == 2
        # Who is here first opens it; three later ones are of the next, all together.
        while world.engine.run.state.published == 2:
            await world.all_act()
        assert counted(world, 3) == ids(*range(N_AFTER))


async def test_who_waits_for_a_step_hears_of_the_epoch_at_once(tmp_path):
    async with masked(tmp_path, N_CLIENTS) as world:
        engine = world.engine
        await world.to_phase("masking")
        await world.act(0)
        waits = asyncio.ensure_future(wait(engine, 0))
        await asyncio.sleep(0)
        await engine.rotation.install(later(world, 0, 1, 2, 3).to_json())
        seen = await waits
        assert seen.epoch == 2


async def together(world, *messages):
    """Have messages wait for one another; return what became of them, in their order."""
    engine = world.engine
    async with engine.run.lock:
        tasks = [asyncio.ensure_future(engine.steps.hear(each)) for each in messages]
        while len(engine.steps._arrived) < len(tasks):
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_messages_that_wait_together_share_a_transaction(tmp_path):
    points: list[str] = []

    async with masked(tmp_path, 5, failpoint=points.append) as world:
        await world.to_phase("sharing")
        messages = [await world.message(number) for number in range(4)]
        points.clear()
        found = await together(world, *messages, messages[0])
        # Which of the equal ones came first does not matter.
        assert sorted(map(bool, found)) == [False] * 4 + [True]
        assert points.count("rows.committed") == 1
        assert points.count("masks.ack") == 4
        assert points.index("rows.committed") < points.index("masks.ack")
        await world.to_sum()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()


async def test_first_messages_are_rarely_held_against_all_cells(tmp_path, monkeypatch):
    looked: list[int] = []

    def counting(rules, round_, here):
        looked.append(len(here))
        return has_all(rules, round_, here)

    monkeypatch.setattr(stepped_rounds, "has_all", counting)

    async with masked(tmp_path, 9, cells_per_round=2, over_provision=1.5) as world:
        await gather(world.engine, range(9))
        # Of three cells of three: after four messages two cells lack three at least.
        for number in (0, 3, 6, 1, 4, 7, 2, 5):
            await world.act(number)
            await world.engine.run.work.settled()
        assert world.round.phase == "sharing"
    assert looked == [4, 7, 8]


async def test_a_message_that_does_not_fit_is_refused_alone(tmp_path):
    async with masked(tmp_path, 5) as world:
        await world.to_phase("sharing")
        messages = [await world.message(number) for number in range(4)]
        malformed = signed(1, messages[1], b"\xff")
        found = await together(world, messages[0], malformed, messages[2], messages[3])
        assert [answer for answer in found if isinstance(answer, bool)] == [False] * 3
        assert isinstance(found[1], ProtocolError)
        with pytest.raises(ConflictingUpload):
            await world.send(signed(2, messages[2], messages[3].body))
        assert len(world.round.sent("shares")) == 3
        assert not await world.send(messages[1])
        await world.to_sum()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()


async def test_a_message_that_breaks_the_collector_is_refused_alone(tmp_path, monkeypatch):
    async with masked(tmp_path, 5) as world:
        await world.to_phase("sharing")
        messages = [await world.message(number) for number in range(4)]
        hear = world.engine.collection.hear  # type: ignore[union-attr]

        def breaking(round_, message):
            if message is messages[1]:
                raise ArithmeticError("a defect")
            hear(round_, message)

        with monkeypatch.context() as patch:
            patch.setattr(world.engine.collection, "hear", breaking)
            found = await together(world, *messages)
        assert [answer for answer in found if isinstance(answer, bool)] == [False] * 3
        assert isinstance(found[1], ArithmeticError)
        assert not await world.send(messages[1])
        await world.to_sum()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()


async def test_a_commit_that_fails_refuses_all_that_it_was_for(tmp_path):
    failing: list[bool] = []

    def failpoint(name):
        if name == "rows.begin" and failing:
            raise StorageError("The disk is full.")

    async with masked(tmp_path, 5, failpoint=failpoint) as world:
        await world.to_phase("sharing")
        messages = [await world.message(number) for number in range(4)]
        failing.append(True)
        found = await together(world, *messages)
        failing.clear()
        assert all(isinstance(answer, StorageError) for answer in found)
        assert world.round.sent("shares") == {}
        assert await together(world, *messages) == [False] * 4
        await world.to_sum()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()
