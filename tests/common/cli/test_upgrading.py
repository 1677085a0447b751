"""`fedrec check --upgrade` tells what would happen to a folder, and changes nothing."""

import errno
import json
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from fedrec import __version__
from fedrec.follower.database import STATE_FILE, image_of
from fedrec.formats import BACKUP_FILE, COORDINATOR, FOLLOWER, RUN_FORMAT
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.schema import Plan

PIN = {
    "federation": "films",
    "run": "run-1",
    "plan_json": plan_to_json(Plan().in_form(1)).decode(),
    "catalogue_fingerprint": "ab",
    "users": "cd",
}
RUN = {"pin": PIN, "epoch": 1, "provenance": {"path": "trainer 1"}}


def database(path, number):
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as rows:
        rows.execute(f"PRAGMA user_version = {number}")


def state(folder):
    folder.mkdir(parents=True)
    records = {name: json.dumps(value).encode() for name, value in RUN.items()}
    (folder / STATE_FILE).write_bytes(image_of({"run": records}))


def former_state(folder, number=10):
    folder.mkdir(parents=True)
    body = f"fedrec client state {number}\n{json.dumps(RUN)}\n"
    digest = sha256(body.encode()).hexdigest()
    (folder / "state.json").write_text(f"{body}{digest}\n")


def run_folder(folder, number):
    folder.mkdir(parents=True)
    (folder / "environment.json").write_text(json.dumps({"format": number}))


def keys(folder, version):
    folder.mkdir(parents=True)
    content = {"kind": "fedrec authority membership", "version": version}
    (folder / "membership.json").write_text(json.dumps(content))


def outcomes(outcome, tmp_path):
    return {
        one["path"].removeprefix(f"{tmp_path}/"): (one["outcome"], one["format"], one["own"])
        for one in outcome.json["found"]
    }


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_killed_coordinators_format_is_in_its_log(fedrec, tmp_path):
    path = tmp_path / "coordinator.sqlite"
    with closing(sqlite3.connect(path)) as rows:
        rows.execute("PRAGMA journal_mode = WAL")
        rows.execute(f"PRAGMA user_version = {COORDINATOR.own}")
        assert (tmp_path / "coordinator.sqlite-wal").stat().st_size
        before = contents(tmp_path)
        (found,) = fedrec("check", "--upgrade", tmp_path, "--json").json["found"]
        assert contents(tmp_path) == before
    assert (found["outcome"], found["format"], found["notes"]) == ("reads", COORDINATOR.own, [])
    (found,) = fedrec("check", "--upgrade", tmp_path, "--json").json["found"]
    assert (found["format"], found["notes"]) == (COORDINATOR.own, [])


@pytest.mark.parametrize("ended", [True, False])
def test_a_log_that_cannot_be_copied(fedrec, tmp_path, monkeypatch, ended):
    """The coordinator ends just before the copy, or there is no space for one."""
    rows = sqlite3.connect(tmp_path / "coordinator.sqlite")
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute(f"PRAGMA user_version = {COORDINATOR.own}")

    def refuse(*values):
        if ended:
            rows.close()
        raise FileNotFoundError if ended else OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedrec.follower.database.shutil.copy", refuse)
    with closing(rows):
        (found,) = fedrec("check", "--upgrade", tmp_path, "--json").json["found"]
    assert found["outcome"] == ("reads" if ended else "refuses")
    notes = " ".join(found["notes"])
    assert ("Its coordinator runs or was killed" in notes) != ended


def test_every_kind_of_folder_is_told_and_none_is_changed(fedrec, tmp_path):
    database(tmp_path / "coordinator" / "coordinator.sqlite", 10)
    state(tmp_path / "a")
    former_state(tmp_path / "b")
    run_folder(tmp_path / "run", RUN_FORMAT)
    keys(tmp_path / "keys", 2)
    (tmp_path / "client.toml").write_text("[rounds]\ntotal = 3\n")
    before = contents(tmp_path)
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    assert outcome.code == 0 and outcome.json["release"] == __version__
    assert outcomes(outcome, tmp_path) == {
        "a": ("reads", 11, FOLLOWER.own),
        "b": ("converts", 10, FOLLOWER.own),
        "client.toml": ("reads", None, None),
        "coordinator": ("converts", 10, COORDINATOR.own),
        "keys": ("reads", 2, 2),
        "run": ("reads", RUN_FORMAT, RUN_FORMAT),
    }
    assert contents(tmp_path) == before
    text = fedrec("check", "--upgrade", tmp_path).out
    assert "10 to 11" in text and "Run run-1 began with release 0.1" in text
    assert "in place of trainer 1 from the next round" in text


@pytest.mark.parametrize(("name", "outcome"), [("sketch", "refuses"), ("fedals", "converts")])
def test_a_run_whose_sums_mean_something_else_now_is_told(fedrec, tmp_path, name, outcome):
    database(tmp_path / "kit" / "state" / "coordinator.sqlite", 10)
    text = f'[algorithm]\nname = "{name}"\n[update]\nstructure = "dense"\n'
    (tmp_path / "kit" / "coordinator.toml").write_text(text)
    found = fedrec("check", "--upgrade", tmp_path / "kit", "--json").json["found"]
    assert [one["outcome"] for one in found] == ["reads", outcome]


@pytest.mark.parametrize(("name", "code"), [("sketch", 5), ("fedals", 0)])
def test_the_clients_of_such_a_run_are_told_too(fedrec, tmp_path, monkeypatch, name, code):
    plan = Plan.model_validate({"algorithm": {"name": name}, "update": {"structure": "dense"}})
    pin = PIN | {"plan_json": plan_to_json(plan.in_form(1)).decode()}
    monkeypatch.setitem(RUN, "pin", pin)
    former_state(tmp_path / "a")
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    assert outcome.code == code
    assert any("--new-run" in note for note in outcome.json["found"][0]["notes"]) == (code == 5)


def test_a_state_of_another_wire_protocol_keeps_what_outlives_runs(fedrec, tmp_path):
    former_state(tmp_path / "revealer" / "state", 9)
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    (found,) = outcome.json["found"]
    assert (found["what"], found["outcome"]) == ("key authority's state", "converts")
    assert "--new-run" in found["notes"][0]


@pytest.mark.parametrize(
    "made",
    [
        lambda folder: database(folder / "it" / "coordinator.sqlite", 12),
        lambda folder: database(folder / "it" / "coordinator.sqlite", 9),
        lambda folder: database(folder / "it" / STATE_FILE, 12),
        lambda folder: run_folder(folder / "it", None),
        lambda folder: keys(folder / "it", 1),
    ],
)
def test_what_this_release_cannot_use_fails_and_says_why(fedrec, tmp_path, made):
    made(tmp_path)
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    assert outcome.code == 5
    assert outcome.json["error"] == "version_mismatch"
    (found,) = outcome.json["found"]
    assert found["outcome"] == "refuses"
    assert "Nothing was changed" in found["notes"][0]


def test_a_malformed_state_is_told_and_the_others_are_read(fedrec, tmp_path, monkeypatch):
    former_state(tmp_path / "b")
    state(tmp_path / "c")
    (tmp_path / "c" / BACKUP_FILE).write_bytes(b"")
    monkeypatch.setitem(RUN, "pin", {"run": "x"})
    former_state(tmp_path / "a")
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    assert outcome.code == 5
    assert [one["outcome"] for one in outcome.json["found"]] == ["refuses", "converts", "reads"]
    assert "KeyError: 'plan_json'" in outcome.json["found"][0]["notes"][0]
    assert "If no round follows, delete it" in outcome.json["found"][2]["notes"][-1]


@pytest.mark.parametrize("content", [b"", b"rubbish" * 100])
def test_what_is_no_database_is_not_told_as_a_format(fedrec, tmp_path, content):
    (tmp_path / "coordinator.sqlite").write_bytes(content)
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    assert outcome.code == 5
    (found,) = outcome.json["found"]
    assert (found["outcome"], found["format"]) == ("refuses", None)
    assert "isn't an SQLite database" in found["notes"][0]
    assert "format 0" not in fedrec("check", "--upgrade", tmp_path).out


def test_an_unreadable_folder_is_told(fedrec, tmp_path, monkeypatch):
    state(tmp_path / "a")
    (tmp_path / "b").mkdir()
    listed = Path.iterdir

    def iterdir(path):
        if path.name == "b":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    assert outcome.code == 5
    assert [one["outcome"] for one in outcome.json["found"]] == ["reads", "refuses"]


def test_settings_that_this_release_does_not_take_are_told(fedrec, tmp_path):
    (tmp_path / "client.toml").write_text("[rounds]\nnumber = 3\n")
    outcome = fedrec("check", "--upgrade", tmp_path, "--json")
    assert outcome.code == 5 and "rounds.number" in outcome.json["found"][0]["notes"][0]


def test_a_folder_of_something_else_is_refused(fedrec, tmp_path):
    outcome = fedrec("check", "--upgrade", tmp_path)
    assert outcome.code == 2 and "Name a kit" in outcome.err
