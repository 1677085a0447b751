"""A federation with cells publishes what a simulation with the same partition does."""

from __future__ import annotations

import numpy as np
import pytest
from integration.conftest import Found, Revealers
from integration.support.bench import N_ITEMS, data, plan_of
from integration.support.parties import Federation

from fedrec.config.schema import Plan, Settings
from fedrec.data import leave_one_out
from fedrec.evaluation.metrics import MetricSums
from fedrec.identity.epoch import KeyEpoch
from fedrec.planning.cell_rows import Cells, cell_rows, cells_of_roster
from fedrec_lab.simulation import SimulationResult, simulate

N_CLIENTS = 6
USERS = leave_one_out(data().interactions, data().catalogue)


def simulated(plan: Plan, cells: Cells) -> SimulationResult:
    settings = Settings.model_validate({**plan.model_dump(), "client": {"device": "cpu"}})
    return simulate(
        settings, n_clients=N_CLIENTS, cells=cells, users=USERS, catalogue=data().catalogue
    )


def deployed_cells(federation: Federation) -> Cells:
    roster = KeyEpoch.load(federation.bench.workspace.epoch).roster
    return cells_of_roster(roster, [f"client {number + 1}" for number in range(N_CLIENTS)])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedmf", "ease"])
def test_the_same_bits_as_a_simulation_with_the_rosters_cells(
    found: Found, revealing: Revealers, algorithm: str
) -> None:
    planned = plan_of("bfv", N_CLIENTS, algorithm, key_holder="authority").model_dump()
    planned["federation"]["minimum_item_users"] = 3
    plan = Plan.model_validate(planned)
    federation = found(plan, N_CLIENTS)
    revealing(federation)
    for client in federation.start_all():
        assert client.result().reason == "all rounds are published"
    cells = deployed_cells(federation)
    assert [len(cell) for cell in cells] == [3, 3]

    result = simulated(plan, cells)
    shared = result.last.shared
    assert {federation.bench.model(n) for n in range(N_CLIENTS)} == {shared.canonical_bytes()}
    metrics = federation.metrics()
    for report in result.rounds:
        sums = MetricSums(np.array(metrics[report.round]))
        assert report.validation == sums.rates("model", "validation")
        assert report.test == sums.rates("model", "test")
    assert simulated(plan, ()).last.shared.canonical_bytes() != shared.canonical_bytes()

    rows = cell_rows(plan, USERS, N_ITEMS, n_clients=N_CLIENTS, cells=cells)
    assert shared.holders is not None and rows.n_left_out > 0
    assert rows.n_trained == np.count_nonzero(shared.holders)
