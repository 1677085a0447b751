"""The folder of a run."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from world.clock import FakeClock

from fedrec.arithmetic import arithmetic_of
from fedrec.environment import Provenance, describe_environment
from fedrec.errors import DataError, RefusedError, StorageError, VersionMismatch
from fedrec.own_folder import WORKERS_PREFIX, OwnFolder
from fedrec.plan.privacy import trust_statement
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec_lab.reports.html import ReportContent
from fedrec_lab.reports.ledger import ledger_of
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "runs", "my films/1", FakeClock())


def test_it_is_named_after_run_and_time(run, tmp_path):
    assert run.path == tmp_path / "runs" / "my-films-1-20231114-221320"
    again = RunFolder.create(tmp_path / "runs", "my films/1", FakeClock())
    assert again.path.name == "my-films-1-20231114-221320-2"


def test_a_name_cannot_lead_out_of_the_folder(tmp_path):
    assert RunFolder.create(tmp_path, "../../x", FakeClock()).path.parent == tmp_path
    assert RunFolder.create(tmp_path, "..", FakeClock()).path.name.startswith("run-")


def test_a_new_run_removes_what_killed_runs_left_and_nothing_else(run, tmp_path):
    left = [run.path / "fedrec-workers-killed00", run.path / "trainings/x/fedrec-users-killed00"]
    others = [run.path / "fedrec-workers-20260101-101010", run.path / "fedrec-others-killed00"]
    for folder in (*left, *others):
        folder.mkdir(parents=True)
        (folder / "lock").touch()
    lives = OwnFolder(run.path, WORKERS_PREFIX)
    RunFolder.create(tmp_path / "runs", "another")
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in (*others, lives.path))
    lives.remove()


def test_it_can_only_be_opened_where_there_is_a_run(run, tmp_path):
    with pytest.raises(DataError, match="not a run folder"):
        RunFolder.open(tmp_path)
    run.write_settings(Settings())
    with pytest.raises(VersionMismatch, match="no format number"):
        RunFolder.open(run.path)
    run.write_environment()
    assert RunFolder.open(run.path).path == run.path
    # A killed run has its checkpoint alone.
    (tmp_path / "killed" / "checkpoint").mkdir(parents=True)
    with pytest.raises(DataError):
        RunFolder.open(tmp_path / "killed")
    (tmp_path / "killed" / "checkpoint" / "checkpoint.json").touch()
    assert RunFolder.open(tmp_path / "killed").path == tmp_path / "killed"


def test_an_unwritable_place_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as error:
        RunFolder.create(tmp_path / "file", "x")
    assert "output.runs" in error.value.remedy


def test_settings_can_be_run_again(run):
    settings = Settings.model_validate(
        {
            "federation": {"name": "a-b", "seed": 2**62},
            "algorithm": {"regularisation": 1e-7},
            "data": {"path": 'we"ird\\na\tme\x7f \N{SNOWMAN}.csv', "strict": True},
        }
    )
    run.write_settings(settings)
    text = (run.path / "resolved.toml").read_text(encoding="utf-8")
    again = load_settings(run.path / "resolved.toml", environ={})
    assert again.plan == settings.plan
    assert again.data.strict
    assert Settings.model_validate(tomllib.loads(settings_to_toml(settings))) == settings
    assert text.startswith("# The settings")
    assert "catalogue" not in settings_to_toml(settings)


def test_paths_lead_from_the_run_folder_to_the_same_files(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    absolute = tmp_path / "catalogue.csv"
    run.write_settings(
        Settings.model_validate({"data": {"path": "data/a.csv", "catalogue": str(absolute)}})
    )
    again = load_settings(run.path / "resolved.toml", environ={})
    assert Path(again.data.path).resolve() == (tmp_path / "data" / "a.csv").resolve()
    assert again.data.catalogue == str(absolute)
    assert Path(again.output.runs).resolve() == (tmp_path / "runs").resolve()
    # The plan's own record has no paths.
    run.write_settings(Settings().plan)


def test_rounds_can_be_read_while_the_run_goes_on(run, rounds):
    assert run.rounds() == ()
    for report in rounds[:3]:
        run.append_round(report)
    assert run.rounds() == rounds[:3]
    # A crash in the middle of a line, then the round once more.
    with (run.path / "rounds.jsonl").open("a") as file:
        file.write('{"round":4,"ki')
    assert run.rounds() == rounds[:3]


def test_a_repeated_round_counts_once(run, rounds):
    for report in (*rounds[:3], rounds[2], rounds[1]):
        run.append_round(report)
    assert run.rounds() == rounds[:3]
    run.write_metrics(rounds)
    assert len((run.path / "rounds.jsonl").read_text().splitlines()) == 5
    assert run.rounds() == rounds


def test_a_report_that_is_none(rounds):
    assert RoundReport.from_json(rounds[1].to_json()) == rounds[1]
    for text in ("{}", "[1]", "nonsense", '{"round": 1}'):
        with pytest.raises(StorageError, match="not a round's report"):
            RoundReport.from_json(text)


def test_metrics_are_a_tidy_table(run, rounds):
    run.write_metrics(rounds)
    table = pq.read_table(run.path / "metrics.parquet").to_pylist()
    assert len(table) == 8
    first = table[0]
    assert (first["round"], first["version"], first["split"]) == (2, 1, "validation")
    assert first["ndcg"] == 0.04
    assert {row["scorer"] for row in table} == {"model"}


def test_the_environment_names_versions_and_no_person(run):
    run.write_environment()
    found = json.loads((run.path / "environment.json").read_text())
    assert dict(map(tuple, found["packages"]))["numpy"]
    assert found["cpu_count"] >= 1
    assert set(found) == {
        "format", "fedrec", "python", "packages", "system", "machine", "cpu", "cpu_count",
        "path", "arithmetic", "accepted",
    }  # fmt: skip
    assert found["format"] == 2
    # Nothing was said to be trained here.
    assert (found["path"], found["arithmetic"], found["accepted"]) == (None, None, [])
    assert describe_environment().fedrec == found["fedrec"]


def test_who_trains_records_device_and_arithmetic(run):
    own = Provenance(path="trainer 1", arithmetic=arithmetic_of("cpu"))
    run.write_environment(own)
    found = json.loads((run.path / "environment.json").read_text())
    assert found["path"] == "trainer 1"
    assert found["arithmetic"]["device"] == "cpu"
    assert Provenance.from_json(found) == own


def test_several_trainings_go_on_under_one_record(run):
    own = Provenance(path="trainer 1", arithmetic=arithmetic_of("cpu"))
    other = replace(own, path="trainer 2")
    run.write_environment(own)
    before = (run.path / "environment.json").read_bytes()
    run.go_on(own, accepted=True)
    with pytest.raises(RefusedError, match=f"The run folder {run.path} was trained"):
        run.go_on(other, accepted=False)
    assert (run.path / "environment.json").read_bytes() == before
    run.go_on(other, accepted=True, clock=FakeClock())
    found = Provenance.from_json(json.loads((run.path / "environment.json").read_text()))
    assert found.path == "trainer 2"
    assert [(change.round, change.at) for change in found.accepted] == [
        (None, "2023-11-14T22:13:20+00:00")
    ]
    run.go_on(other, accepted=False)
    (run.path / "environment.json").write_text("{}")
    with pytest.raises(StorageError, match=r"environment\.json cannot be read"):
        run.go_on(other, accepted=True)


def test_the_ledger_claims_no_differential_privacy(run, rounds):
    plan = Settings.model_validate({"update": {"clip": 0.5}}).plan
    run.write_ledger(ledger_of(plan, rounds, simulated=False))
    found = json.loads((run.path / "ledger.json").read_text())
    assert found["format"] == "fedrec privacy ledger 1.1"
    assert found["differential_privacy"] is False
    assert found["statements"][0].startswith("No differential privacy")
    assert "colludes" in found["statements"][1]
    assert [entry["n_releases"] for entry in found["releases"]] == [1, 3, 1]
    assert [entry["clip"] for entry in found["releases"]] == [None, 0.5, None]
    simulated = ledger_of(plan, rounds, simulated=True)
    assert "one process" in simulated.statements[1]


def test_the_ledger_says_that_indices_were_read(rounds):
    settings = {
        "update": {"structure": "topk", "indices": "clear"},
        "protection": {"name": "paillier", "preset": "single-3072"},
    }
    plan = Settings.model_validate(settings).plan
    _, where = ledger_of(plan, rounds, simulated=False).statements
    assert where.endswith(
        "It also sees, in every round, the index of every kept value, which names the user's items."
    )
    _, alone = ledger_of(plan, rounds, simulated=True).statements
    assert "index" not in alone


@pytest.mark.parametrize(("name", "note"), [("ckks", True), ("bfv", False), ("paillier", False)])
def test_the_ledger_says_what_sums_without_tags_rest_on(rounds, name, note):
    plan = Settings.model_validate({"protection": {"name": name, "key_holder": "authority"}}).plan
    _, where = ledger_of(plan, rounds, simulated=False).statements
    assert "key authority alone holds the secret key" in where
    assert ("negated or multiplied ciphertexts of others" in where) is note
    assert trust_statement(plan) == where


def test_the_ledger_says_what_noise_promises(run, rounds):
    settings = {"privacy": {"mechanism": "gaussian", "noise_multiplier": 4.0}}
    plan = Settings.model_validate(settings).plan
    run.write_ledger(ledger_of(plan, rounds, simulated=False, n_items=10, n_charged=5))
    found = json.loads((run.path / "ledger.json").read_text())
    assert found["differential_privacy"] is True
    promised = found["guarantee"]
    # Five sums were made, three of them published; the number is dp-accounting's (PLD).
    assert promised["sums"] == promised["sums_per_user"] == 5
    assert promised["epsilon"] == pytest.approx(2.2581, rel=0.01)
    assert (promised["unit"], promised["delta"]) == ("user", 1e-5)
    assert "Item counts and metrics are not" in " ".join(promised["not_covered"])
    assert "No differential privacy" not in " ".join(found["statements"])


def test_the_report_is_a_file_of_the_folder(run):
    content = ReportContent(title="t", subtitle="s", rows=(), at=10)
    assert run.write_report(content) == run.path / "report.html"
