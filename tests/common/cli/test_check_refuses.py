"""`fedrec check` refuses what `fedrec simulate` would refuse, with the same error, and no more."""

from __future__ import annotations

import pytest
import torch
from command import sets

from fedrec.data import Catalogue

CHECKED = ("check", "simulate")
REFUSED: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "a user too many": ("federation.maximum_users=16",),
    "no item that enough hold": ("federation.minimum_item_users=25",),
    "users that all have too little": ("data.minimum_interactions=1000",),
    "items that too few have": ("data.minimum_item_interactions=1000",),
    "few items to draw from": ("evaluation.protocol=sampled",),
    "another separator": ("data.separator=tab", "data.layout=csv"),
    "a rating that the file has not": ("data.minimum_rating=3",),
    "columns beside a header": ("data.columns=user,item,timestamp",),
    "items outside the catalogue": ("data.catalogue=small.csv",),
    "what clients would show": (),
    "no place for runs": ("output.runs=/proc/runs",),
    "a file where runs would be": ("output.runs=small.csv",),
    "a floor that no item reaches": ("client.minimum_own_item_users=1000",),
    "two at once": ("federation.minimum_item_users=25", "evaluation.protocol=sampled"),
    "settings that contradict each other": ("rounds.minimum_clients=0",),
}


@pytest.fixture
def settings_file(settings_file, tmp_path):
    Catalogue.of(["i00", "i01"]).save(tmp_path / "small.csv")
    return settings_file


@pytest.fixture
def exposed_file(fedrec, tmp_path, interactions_file):
    path = tmp_path / "exposed.toml"
    plain = ("--algorithm", "ease", "--protection", "none", "--accept-exposure")
    start = ("init", path, *plain, "--data", interactions_file, "--clients", 3)
    assert fedrec(*start).code == 0
    return path


def test_a_file_that_is_not_there(fedrec, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\npath = "absent.csv"\n')
    checked, simulated = fedrec("check", path), fedrec("simulate", path)
    assert checked.code == simulated.code == 2
    assert checked.err == simulated.err
    assert "absent.csv is not there" in checked.err


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case == "nothing")) for case in REFUSED]
)
def test_both_commands_refuse_alike(
    fedrec, tmp_path, settings_file, exposed_file, case, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if case == "what clients would show":
        settings_file = exposed_file
    values = ("rounds.total=1", "federation.minimum_item_users=2", *REFUSED[case])
    given = sets(*values)
    checked = fedrec("check", settings_file, *given)
    simulated = fedrec("simulate", settings_file, *given)
    assert (simulated.code == 0) == (case == "nothing")
    assert checked.code == simulated.code

    def refusal(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if not line.startswith(("warning:", "data:"))]
        return [line for line in lines if not line.startswith("  As in: ")]

    if checked.code:
        assert refusal(checked.err) == refusal(simulated.err)


def test_a_device_that_is_not_there(fedrec, settings_file):
    beyond = f"cuda:{torch.cuda.device_count() + 1}"
    given = ("--set", f"client.device={beyond}", "--set", "federation.minimum_item_users=2")
    checked = fedrec("check", settings_file, *given)
    assert checked.code == fedrec("simulate", settings_file, *given).code == 2
    assert "client.device" in checked.err


def test_ray_is_refused_if_it_is_missing_and_warned_of_if_it_does_not_pay(
    fedrec, settings_file, monkeypatch
):
    given = sets("client.engine=ray", "federation.minimum_item_users=2")
    monkeypatch.setattr("fedrec.extras.is_missing", lambda name: name == "ray")
    checked, simulated = (fedrec(command, settings_file, *given) for command in CHECKED)
    assert checked.code == simulated.code == 2
    assert "needs ray, which is not installed" in checked.err
    assert "needs ray, which is not installed" in simulated.err
    assert 'client.engine = "local" is faster' in checked.out
    assert "takes a GPU" in fedrec("check", settings_file, *given, *sets("client.device=cuda")).out
    monkeypatch.setattr("fedrec.extras.is_missing", lambda name: name in ("ray", "torch"))
    untrained = fedrec("check", settings_file, *given)
    assert untrained.code == 2 and "whole run, at most" in untrained.out
    assert "measuring, for Ray" in checked.out and "for Ray" not in untrained.out
    monkeypatch.setattr("fedrec.extras.is_missing", lambda name: False)
    found = fedrec("check", settings_file, *given, "--json")
    assert found.code == 0
    # Two splits of every user on the items that travel, 5 ns each.
    most = 2 * found.json["users"] * found.json["price"]["n_items"] * 5e-9
    assert most / 3 < found.json["ray"]["measuring_seconds"] <= most


def test_the_price_is_shown_before_the_refusal(fedrec, settings_file):
    given = ("--set", "federation.maximum_users=16")
    seen = fedrec("check", settings_file, *given)
    assert "upload, at most" in seen.out
    found = fedrec("check", settings_file, *given, "--json")
    assert found.code == found.json["exit_code"] == 2
    assert found.json["price"]["n_items"] == 30
    (refusal,) = found.json["refusals"]
    assert refusal["error"] == found.json["error"] == "settings"


def test_several_refusals_are_all_told(fedrec, exposed_file):
    seen = fedrec("check", exposed_file, "--set", "federation.minimum_item_users=25")
    assert seen.code == 5
    assert "refused, too: The data set is too small" in seen.out
    accepted = ("--set", "federation.minimum_item_users=2", "--accept-exposure")
    assert fedrec("check", exposed_file, *accepted).code == 0


def test_a_clients_own_data_is_not_the_whole_federation(fedrec, settings_file):
    party = ("--set", "client.invitation=invitation.pem")
    seen = fedrec("check", settings_file, *party)
    assert seen.code == 0
    assert "with this data alone, no rows would be trained" in seen.out
    rare = fedrec("check", settings_file, *party, "--set", "data.minimum_item_interactions=2")
    assert rare.code == 2
    assert "a client cannot count" in rare.err


@pytest.mark.parametrize("party", [(), ("--set", "client.invitation=invitation.pem")])
def test_a_floor_above_a_clients_users(fedrec, settings_file, party):
    n_users = fedrec("check", settings_file, "--json").json["users"]
    dealt = n_users if party else n_users // 3
    for floor, code in ((dealt, 0), (dealt + 1, 5)):
        given = ("--set", f"client.minimum_own_item_users={floor}", "--clients", 3, *party)
        found = fedrec("check", settings_file, *given, "--set", "federation.minimum_item_users=2")
        assert found.code == code
    assert f"client.minimum_own_item_users is {dealt + 1}, but this client has" in found.err
    assert f"Set client.minimum_own_item_users = {dealt} or less" in found.err


@pytest.mark.slow
@pytest.mark.parametrize("clients", [2, 3, 1000])
def test_clients_that_the_protection_does_not_add_up(fedrec, settings_file, tmp_path, clients):
    """`bfv` reveals no sum of two, and its parameters are for as many as the plan allows."""
    given = ("--clients", clients, "--set", "federation.minimum_item_users=2")
    given = (*given, "--set", "rounds.total=1", "--set", f"output.runs={tmp_path / 'runs'}")
    checked = fedrec("check", settings_file, *given)
    assert checked.code == (0 if clients == 3 else 2)
    if clients != 3:
        simulated = fedrec("simulate", settings_file, *given, "--protect")
        assert simulated.code == 2 and f"{clients} clients cannot be summed" in simulated.err
        assert checked.err.splitlines()[-2:] == simulated.err.splitlines()[-2:]


def test_where_runs_go_is_looked_at_and_left_as_it_is(fedrec, settings_file):
    folder = settings_file.parent / "new" / "runs"
    given = ("--set", f"output.runs={folder}", "--set", "federation.minimum_item_users=2")
    assert fedrec("check", settings_file, *given).code == 0
    assert not folder.parent.exists()
