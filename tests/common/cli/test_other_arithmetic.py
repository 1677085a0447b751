"""`--accept-other-arithmetic`, and folders of other formats, as users of the command meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import SMALL, sets

from fedrec.cli import flags
from fedrec.environment import ACCEPT_FLAG
from fedrec_lab.reports.round_progress import StopRequest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_figures")]

SETTINGS = sets(*SMALL)
OTHER = "OPENBLAS_CORETYPE"
"""Part of the arithmetic; a process that has loaded the library does not look at it any more."""


@pytest.fixture(autouse=True)
def _absent(monkeypatch):
    """Some machines set it; the library is loaded already and does not look at it."""
    monkeypatch.delenv(OTHER, raising=False)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def stopped(fedrec, settings_file, monkeypatch):
    """The folder of a simulation that was stopped after its first round."""
    with monkeypatch.context() as patched:
        patched.setattr(StopRequest, "requested", lambda self: True)
        outcome = fedrec("simulate", settings_file, *SETTINGS)
    assert outcome.code == 130
    return Path(outcome.out.splitlines()[-1])


def test_the_flag_is_the_one_that_errors_name():
    assert flags._FLAG == ACCEPT_FLAG


@pytest.mark.parametrize("command", ["simulate", "evaluate", "reproduce"])
def test_it_needs_something_to_go_on_with(fedrec, settings_file, tmp_path, command):
    outcome = fedrec(command, settings_file, ACCEPT_FLAG)
    assert outcome.code == 2
    assert "Add --resume" in outcome.err
    assert not (tmp_path / "runs").exists()


def test_a_simulation_goes_on_elsewhere_if_asked(fedrec, stopped, interactions_file, monkeypatch):
    again = ("simulate", stopped / "resolved.toml", "--resume", stopped)
    before = contents(stopped)
    monkeypatch.setenv(OTHER, "Prescott")
    refused = fedrec(*again)
    assert refused.code == 5
    for part in (OTHER, "checkpoint.json", ACCEPT_FLAG):
        assert part in refused.err
    assert contents(stopped) == before
    assert fedrec(*again, ACCEPT_FLAG).code == 0
    record = json.loads((stopped / "environment.json").read_text())
    assert [change["round"] for change in record["accepted"]] == [1]
    # Whoever only reads is asked for nothing.
    monkeypatch.delenv(OTHER)
    user = interactions_file.read_text().splitlines()[1].split(",")[0]
    assert fedrec("recommend", stopped, "--user", user, "-n", 1).code == 0


def test_a_folder_of_another_format_is_refused_by_its_number(fedrec, stopped):
    path = stopped / "environment.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"format": 3}))
    before = contents(stopped)
    for again in (
        ("simulate", stopped / "resolved.toml", "--resume", stopped, ACCEPT_FLAG),
        ("evaluate", stopped / "resolved.toml", "--resume", stopped, ACCEPT_FLAG),
        ("recommend", stopped, "--user", "u1"),
    ):
        outcome = fedrec(*again)
        assert outcome.code == 5
        assert "format 3, made by a newer" in outcome.err
    assert contents(stopped) == before


def test_an_evaluation_goes_on_elsewhere_if_asked(fedrec, settings_file, tmp_path, monkeypatch):
    out = tmp_path / "results"
    asked = ("--protocols", "full", "--seeds", "7,", "--no-references")
    assert fedrec("evaluate", settings_file, *asked, "--out", out, *SETTINGS).code == 0
    before = contents(out)
    again = ("evaluate", out / "resolved.toml", *asked, "--resume", out)
    monkeypatch.setenv(OTHER, "Prescott")
    refused = fedrec(*again)
    assert refused.code == 5
    assert f"The run folder {out} was trained under other arithmetic" in refused.err
    assert contents(out) == before
    assert fedrec(*again, ACCEPT_FLAG).code == 0
    (change,) = json.loads((out / "environment.json").read_text())["accepted"]
    assert change["round"] is None
    assert fedrec(*again).code == 0
    # A part of another format is not measured again in silence.
    (part,) = (out / "parts").iterdir()
    part.write_text(json.dumps(json.loads(part.read_text()) | {"version": "1.0"}))
    assert f"{part} has format 1" in fedrec(*again).err
