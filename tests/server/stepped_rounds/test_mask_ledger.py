"""Under masks a sum can be read once clients give shares: the ledger counts it before that."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from server.support.masked import Masked, federation_of, masked

from fedrec.errors import StorageError
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import PrivacySettings
from fedrec.privacy import BUDGET_SPENT
from fedrec_server.engine import Engine
from fedrec_server.federation import Federation

TRAIN = 2
"""The round after the count is the first one that is noisy."""


def noisy(n_clients: int = 4, mechanism: str = "gaussian", **rounds: float) -> Federation:
    privacy = PrivacySettings.model_validate(
        {"mechanism": mechanism, "noise_multiplier": 4.0, "epsilon": 100.0}
    )
    return federation_of(n_clients, privacy=privacy, **rounds)


@pytest.mark.parametrize("rounds", [{}, {"minimum_clients": 9}, {"minimum_summands": 7}])
def test_rounds_are_never_smaller_than_the_shares_of_noise_assume(rounds):
    """Shares are (z C)^2 / n: with no fewer than n summands a sum has all of (z C)^2."""
    federation = noisy(12, **rounds)
    found = mechanism_of(federation.plan)
    assert found is not None
    wanted = 4.0 * found.bound
    for n_summands in (federation.rules("run").needed, 12):
        assert n_summands * found.share**2 >= wanted**2
    assert federation.rules("run").needed == max(3, *rounds.values(), 0)


def rows_of(folder: Path) -> list[int]:
    """Return the rounds that the ledger on disk counts."""
    with sqlite3.connect(folder / "state" / "coordinator.sqlite") as rows:
        return [row[0] for row in rows.execute("SELECT round FROM ledger ORDER BY round")]


async def to_training(world: Masked, phase: str) -> None:
    """Publish the count, and bring the first training round to a phase."""
    while world.engine.run.state.published < TRAIN - 1:
        await world.all_act()
    await world.engine.tick()
    await world.to_phase(phase)


def charged_by_journal(engine: Engine) -> list[int]:
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
        while world.engine.run.state.ending is None:
            await world.all_act()
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


async def test_a_step_that_could_not_be_stored_asks_nobody_for_shares(tmp_path):
    """The charge is in the transaction that begins the answers: without it there are none."""
    failing: list[Masked] = []

    def failpoint(name: str) -> None:
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
        while world.engine.run.state.ending is None:
            await world.all_act()
        assert world.engine.run.state.ending.failed
        assert world.engine.run.state.ending.reason.startswith(BUDGET_SPENT)
        assert world.engine.run.state.trained == world.engine.run.state.charged == 1
