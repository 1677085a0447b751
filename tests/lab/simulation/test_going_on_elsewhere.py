"""Checkpoints of other formats, and simulations that go on where training rounds otherwise."""

import json

import pytest
from lab.simulation.runs import run
from world.clock import FakeClock

from fedrec.arithmetic import arithmetic_of
from fedrec.errors import RefusedError, VersionMismatch
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation import record_simulation
from fedrec_lab.simulation.checkpoint import simulation_identity

pytestmark = pytest.mark.slow

OTHER = "OPENBLAS_CORETYPE"
"""Part of the arithmetic; a process that has loaded the library does not look at it any more."""


@pytest.fixture(autouse=True)
def _absent(monkeypatch):
    """Some machines set it; the library is loaded already and does not look at it."""
    monkeypatch.delenv(OTHER, raising=False)


def contents(folder):
    """Every file below a folder, byte by byte."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def stopped(settings_of, data, tmp_path):
    """Return a function that goes on with a simulation that was stopped after round 3."""
    seen = []

    def go_on(**options):
        own = {"folder": tmp_path, "on_round": seen.append, "clock": FakeClock()}
        return run(settings_of(), data, **own, **options)

    go_on(stop=lambda: len(seen) == 3)
    return go_on


def rewrite(folder, change):
    index = folder / "checkpoint" / "checkpoint.json"
    record = json.loads(index.read_text())
    change(record)
    index.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("version", "named"),
    [("1.0", "format 1, made by an older"), (None, "no format number"), (9, "format 9, made by a")],
)
def test_another_format_is_refused_by_its_number(stopped, tmp_path, version, named):
    def change(record):
        # What an older checkpoint had is not what this one reads.
        record.pop("provenance")
        if version is None:
            del record["version"]
        else:
            record["version"] = version

    rewrite(tmp_path, change)
    before = contents(tmp_path)
    # Accepting other arithmetic is about something else.
    with pytest.raises(VersionMismatch, match=named):
        stopped(resume=True, accept_other_arithmetic=True)
    assert contents(tmp_path) == before


def test_a_simulation_that_a_former_release_began_goes_on(stopped, settings_of, data, tmp_path):
    users, catalogue = data
    former = simulation_identity(settings_of(), catalogue.fingerprint(), users, form=1)
    rewrite(tmp_path, lambda record: record.update(identity=former))
    result = stopped(resume=True)
    assert result.rounds[-1].round > 3
    rewritten = simulation_identity(settings_of(), catalogue.fingerprint(), users)
    assert former != rewritten


def test_other_arithmetic_is_refused_and_nothing_is_touched(stopped, tmp_path, monkeypatch):
    before = contents(tmp_path)
    with monkeypatch.context() as patched:
        patched.setenv(OTHER, "Prescott")
        with pytest.raises(RefusedError, match=f"{OTHER} is Prescott, not absent") as caught:
            stopped(resume=True)
    assert "--accept-other-arithmetic" in caught.value.remedy
    assert contents(tmp_path) == before
    assert stopped(resume=True).finished


def test_another_path_is_refused(stopped, tmp_path):
    rewrite(tmp_path, lambda record: record["provenance"].update(path="trainer 0"))
    with pytest.raises(
        RefusedError, match="The training path is fedmf accelerator 1, not trainer 0"
    ):
        stopped(resume=True)


def test_what_was_accepted_is_in_checkpoint_result_and_run_folder(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr("fedrec_lab.reports.html.why_no_figures", lambda: "Without figures.")
    own = arithmetic_of("cpu")
    monkeypatch.setenv(OTHER, "Prescott")
    stopped(resume=True, accept_other_arithmetic=True, stop=lambda: True)
    # The next time nothing is asked: the run is this arithmetic's own from then on.
    result = stopped(resume=True)
    (change,) = result.provenance.accepted
    assert change.at == "2023-11-14T22:13:20+00:00"
    assert change.round == 3
    assert (change.before, change.after) == (own.digest(), arithmetic_of("cpu").digest())
    record_simulation(result, RunFolder(tmp_path))
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["accepted"] == [
        {
            "at": change.at,
            "round": 3,
            "before": own.digest(),
            "after": change.after,
            "difference": f"The arithmetic differs: {OTHER} is Prescott, not absent.",
        }
    ]
    assert found["arithmetic"]["settings"] == [[OTHER, "Prescott"]]
    assert "other arithmetic accepted after round 3" in (tmp_path / "report.html").read_text()


def test_acceptance_is_written_down_before_the_first_round(stopped, tmp_path, monkeypatch):
    monkeypatch.setenv(OTHER, "Prescott")

    def die(federation):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedrec_lab.simulation.federation.SimulatedFederation.advance", die)
    with pytest.raises(KeyboardInterrupt):
        stopped(resume=True, accept_other_arithmetic=True)
    record = json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())
    assert [change["round"] for change in record["provenance"]["accepted"]] == [3]
