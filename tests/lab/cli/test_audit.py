"""`fedrec audit` on data whose answer is known."""

import pytest
from world.federation import made_data, prepare

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
    assert "At least 1 of 3 users are determined." in outcome.out
    assert "  cleo\n" in outcome.out
    assert "Raise federation.minimum_item_users" in outcome.out
    found = fedrec("audit", settings_file, "--json").json["sums"]
    assert found["determined"] == ["cleo"]
    assert found["findings"]["items_of_one_user"] == 1
    assert (found["users"], found["items"], found["active_items"]) == (3, 3, 3)


def test_the_setting_helps(fedrec, settings_file):
    least = ("--set", "federation.minimum_item_users=2")
    found = fedrec("audit", settings_file, *least, "--json").json["sums"]
    assert found["determined"] == []
    assert (found["active_items"], found["minimum_item_users"]) == (2, 2)
    assert "0 of 3 users are determined" in fedrec("audit", settings_file, *least).out


def test_other_algorithms_are_audited_by_rows(fedrec, settings_file):
    found = fedrec("audit", settings_file, "--set", "algorithm.name=fedals", "--json").json["sums"]
    assert found["algorithm"] == "fedals"
    assert found["determined"] == ["cleo"]
    assert found["findings"]["users_alone_with_an_item"] == 1


def test_it_says_what_the_coordinator_reads_besides_sums(fedrec, settings_file):
    single = ("--set", "algorithm.name=gpfedrec", "--set", "protection.name=none")
    outcome = fedrec("audit", settings_file, *single)
    assert outcome.out.startswith(
        "Besides sums, the coordinator reads each client's own item table"
    )
    assert fedrec("audit", settings_file, "--json").json["sums"]["exposed"] == ""


def test_it_needs_data(fedrec, tmp_path):
    path = tmp_path / "empty.toml"
    path.write_text("")
    refused = fedrec("audit", path)
    assert refused.code == 2
    assert "data.path is missing: an audit needs a file" in refused.err


@pytest.mark.slow
def test_what_applies_is_chosen(fedrec, settings_file, tmp_path):
    assert set(fedrec("audit", settings_file, "--json").json) == {"path", "sums"}
    noise = ("--set", "privacy.mechanism=gaussian", "--trials", 100)
    dense = ("--set", "algorithm.name=fedmf", *noise)
    both = fedrec("audit", settings_file, *dense, "--json")
    assert set(both.json) == {"path", "sums", "dp"}, both.err
    alone = fedrec("audit", settings_file, *dense, "--only", "dp", "--json")
    assert set(alone.json) == {"path", "dp"}
    in_parts = ("--set", "algorithm.name=ease", "--set", "update.structure=dense", *noise)
    shown = fedrec("audit", settings_file, *in_parts, "--only", "dp")
    assert "They assume that the noise is Gaussian" in shown.out, shown.err
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    text = settings_file.read_text().replace("data.csv", str(tmp_path / "data.csv"))
    (run / "resolved.toml").write_text(text)
    assert fedrec("audit", run, "--json").json["sums"]["determined"] == ["cleo"]
    refused = fedrec("audit", settings_file, "--only", "sum")
    assert refused.code == 2 and "Choose from sums, dp, indices, wire." in refused.err


def test_its_help_names_the_audits(fedrec):
    shown = fedrec("audit", "--help")
    assert all(name in shown.out for name in ("sums", "dp", "indices", "wire"))


@pytest.fixture
def coordinator(tmp_path):
    """Return the settings of a coordinator that has not begun, with its empty folder."""
    plan = Plan.model_validate(
        {"algorithm": {"name": "fedmf", "dim": 4}, "protection": {"name": "bfv"}}
        | {"update": {"structure": "dense"}}
    )
    workspace = prepare(tmp_path, plan, made_data(), n_clients=3)
    workspace.coordinator_state.mkdir()
    return workspace.parties.coordinator


def test_an_empty_folder_breaks_no_promise(fedrec, coordinator):
    outcome = fedrec("audit", coordinator)
    assert outcome.code == 0, outcome.err
    assert "Nothing was recorded, so only the coordinator's folder was checked." in outcome.out
    assert "Every promise about bfv held." in outcome.out


def test_a_broken_promise_is_an_exit_code(fedrec, coordinator):
    (coordinator.parent / "coordinator" / "users.txt").write_text("anna")
    outcome = fedrec("audit", coordinator)
    assert outcome.code == 1
    assert "BROKEN PROMISES: 1." in outcome.out
    found = fedrec("audit", coordinator, "--json")
    assert found.code == 1
    wire = found.json["wire"]
    assert wire["problems"] == ["file users.txt must not exist: 4 bytes"]
    assert (wire["holds"], wire["protection"]) == (False, "bfv")


def test_a_folder_without_recordings_is_refused(fedrec, coordinator, tmp_path):
    (tmp_path / "empty").mkdir()
    refused = fedrec("audit", coordinator, "--recording", tmp_path / "empty")
    assert refused.code == 2
    assert "--record-wire" in refused.err


@pytest.mark.slow
def test_indices_are_measured_and_drawn(fedrec, settings_file, tmp_path):
    figure = tmp_path / "new" / "leak.svg"
    dense = ("--set", "algorithm.name=fedmf", "--rounds", "2")
    outcome = fedrec("audit", settings_file, "--only", "indices", *dense, "--figure", figure)
    assert outcome.code == 0, outcome.err
    assert "only the rows that training touched" in outcome.out
    assert figure.read_text().startswith("<svg")
    outcome = fedrec("audit", settings_file, "--only", "indices", *dense, "--json")
    found = outcome.json["indices"]
    assert [row["rounds"] for row in found["rounds"]] == [1, 2]
    assert found["rounds"][0]["recall"] == 1.0
