"""`fedrec audit` on data whose answer is known."""

import pytest
from world.federation import DemoData, prepare

from fedrec.data import generate
from fedrec.plan.schema import Plan


@pytest.fixture
def settings_file(tmp_path):
    rows = {"anna": "ab", "ben": "ab", "cleo": "ac"}
    lines = [f"{user},{item}" for user, held in rows.items() for item in held]
    (tmp_path / "data.csv").write_text("\n".join(["user_id,item_id", *lines]) + "\n")
    path = tmp_path / "run.toml"
    path.write_text(
        '[federation]\nminimum_item_users = 1\n[algorithm]\nname = "ease"\n'
        '[update]\nstructure = "dense"\n[data]\npath = "data.csv"\n'
    )
    return path


def test_it_names_whom_the_sums_determine(fedrec, settings_file):
    outcome = fedrec("audit", settings_file)
    assert outcome.code == 0, outcome.err
    assert "1 of 3 users are determined, at least." in outcome.out
    assert "  cleo\n" in outcome.out
    assert "Raise federation.minimum_item_users" in outcome.out
    found = fedrec("audit", settings_file, "--json").json
    assert found["determined"] == ["cleo"]
    assert found["findings"]["items_of_one_user"] == 1
    assert (found["users"], found["items"], found["active_items"]) == (3, 3, 3)


def test_the_setting_helps(fedrec, settings_file):
    least = ("--set", "federation.minimum_item_users=2")
    found = fedrec("audit", settings_file, *least, "--json").json
    assert found["determined"] == []
    assert (found["active_items"], found["minimum_item_users"]) == (2, 2)
    assert "0 of 3 users are determined" in fedrec("audit", settings_file, *least).out


def test_other_algorithms_are_audited_by_rows(fedrec, settings_file):
    found = fedrec("audit", settings_file, "--set", "algorithm.name=fedals", "--json").json
    assert found["algorithm"] == "fedals"
    assert found["determined"] == ["cleo"]
    assert found["findings"]["users_alone_with_an_item"] == 1


def test_it_needs_data(fedrec, tmp_path):
    path = tmp_path / "empty.toml"
    path.write_text("")
    refused = fedrec("audit", path)
    assert refused.code == 2
    assert "data.path is missing: an audit needs a file" in refused.err


def test_the_short_form_is_that_of_the_sums(fedrec, settings_file):
    short, whole = (
        fedrec("audit", *words) for words in ((settings_file,), ("sums", settings_file))
    )
    assert short.out == whole.out
    assert fedrec("audit", "--json", settings_file).json["determined"] == ["cleo"]


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_its_help_names_the_audits(fedrec, words):
    shown = fedrec("audit", *words)
    assert all(name in shown.out + shown.err for name in ("sums", "wire", "indices"))


@pytest.fixture
def coordinator(tmp_path):
    """Return the settings of a coordinator that has not begun, with its empty folder."""
    made = generate(n_users=12, n_items=30, n_clusters=2, interactions_per_user=5)
    data = DemoData(name="test", interactions=made.interactions, catalogue=made.catalogue, note="")
    plan = Plan.model_validate(
        {"algorithm": {"name": "fedmf", "dim": 4}, "protection": {"name": "bfv"}}
        | {"update": {"structure": "dense"}}
    )
    workspace = prepare(tmp_path, plan, data, n_clients=3)
    workspace.coordinator_state.mkdir()
    return workspace.parties.coordinator


def test_an_empty_folder_breaks_no_promise(fedrec, coordinator):
    outcome = fedrec("audit", "wire", coordinator)
    assert outcome.code == 0, outcome.err
    assert "Nothing was recorded: only the coordinator's folder was looked at." in outcome.out
    assert "Every promise about bfv held." in outcome.out


def test_a_broken_promise_is_an_exit_code(fedrec, coordinator):
    (coordinator.parent / "coordinator" / "users.txt").write_text("anna")
    outcome = fedrec("audit", "wire", coordinator)
    assert outcome.code == 1
    assert "BROKEN PROMISES: 1." in outcome.out
    found = fedrec("audit", "wire", coordinator, "--json")
    assert found.code == 1
    assert found.json["problems"] == ["file users.txt is nothing that may be there: 4 bytes"]
    assert (found.json["holds"], found.json["protection"]) == (False, "bfv")


def test_a_folder_without_recordings_is_refused(fedrec, coordinator, tmp_path):
    (tmp_path / "empty").mkdir()
    refused = fedrec("audit", "wire", coordinator, "--recording", tmp_path / "empty")
    assert refused.code == 2
    assert "--record-wire" in refused.err


@pytest.mark.slow
def test_indices_are_measured_and_drawn(fedrec, settings_file, tmp_path):
    figure = tmp_path / "leak.svg"
    dense = ("--set", "algorithm.name=fedmf", "--rounds", "2")
    outcome = fedrec("audit", "indices", settings_file, *dense, "--figure", figure)
    assert outcome.code == 0, outcome.err
    assert "only the rows that training touched" in outcome.out
    assert figure.read_text().startswith("<svg")
    found = fedrec("audit", "indices", settings_file, *dense, "--json").json
    assert [row["rounds"] for row in found["rounds"]] == [1, 2]
    assert found["rounds"][0]["recall"] == 1.0
