"""A federation with cells publishes what a simulation with the same partition does."""

import numpy as np
import pytest
from world.bench import N_ITEMS, data, plan_of
from world.parties import check_against_one_process
from world.plans import params

from fedrec.cli.flags import read_cells
from fedrec.data import leave_one_out
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import MetricSums
from fedrec.identity.epoch import KeyEpoch
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import cell_rows, cells_of_roster
from fedrec.settings.schema import Settings
from fedrec_lab.simulation import simulate

N_CLIENTS = 6
USERS = leave_one_out(data().interactions, data().catalogue)


def simulated(plan, cells):
    settings = Settings.model_validate({**plan.model_dump(), "client": {"device": "cpu"}})
    return simulate(
        settings, n_clients=N_CLIENTS, cells=cells, users=USERS, catalogue=data().catalogue
    )


def deployed_cells(federation):
    roster = KeyEpoch.load(federation.bench.workspace.epoch).roster
    return cells_of_roster(roster, [f"client {number + 1}" for number in range(N_CLIENTS)])


def with_names(settings, names):
    """Name the parties as the tests' folders label them, which kits could not."""
    parties = settings.parties.model_copy(update={"clients": names})
    return settings.model_copy(update={"parties": parties})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", params("ease", long=["fedmf"]))
def test_the_same_bits_as_a_simulation_with_the_rosters_cells(found, revealing, algorithm):
    planned = plan_of("bfv", N_CLIENTS, algorithm, key_holder="authority").model_dump()
    planned["federation"]["minimum_item_users"] = 3
    plan = Plan.model_validate(planned)
    federation = found(plan, N_CLIENTS)
    revealing(federation)
    federation.start_all()
    check_against_one_process(federation)
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


def test_the_flag_takes_a_roster_and_says_whose_names_are_missing(found, tmp_path):
    plan = plan_of("bfv", N_CLIENTS, key_holder="authority")
    bench = found(plan, N_CLIENTS).bench
    path = tmp_path / "roster.json"
    path.write_bytes(KeyEpoch.load(bench.workspace.epoch).roster.to_json())
    names = [f"client {number + 1}" for number in range(N_CLIENTS)]
    settings = with_names(Settings.model_validate(plan.model_dump()), names)
    n_clients, cells, warning = read_cells(settings, str(path), 0)
    assert (n_clients, warning) == (N_CLIENTS, "")
    assert sorted(party for cell in cells for party in cell) == list(range(N_CLIENTS))
    with pytest.raises(SettingsError, match=r"--clients is 7, but parties\.clients names 6"):
        read_cells(settings, str(path), 7)
    others = with_names(settings, names[1:])
    with pytest.raises(SettingsError, match=r"6 members do not match the 5 in parties\.clients"):
        read_cells(others, str(path), 0)
