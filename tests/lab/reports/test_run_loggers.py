"""Trackers get a run's settings and rounds and nothing else, and a lost tracker costs no run."""

import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from command import SMALL, fedrec, interactions_file, sets, settings_file, without_figures

from fedrec.errors import SettingsError
from fedrec.settings.validation import load_settings
from fedrec_lab.reports import run_loggers
from fedrec_lab.reports.round_progress import StopRequest
from fedrec_lab.reports.run_loggers import RunLogger, RunLoggers

__all__ = ["fedrec", "interactions_file", "settings_file", "without_figures"]

SETTINGS = sets(*SMALL)


class Heard(RunLogger):
    """Keeps what it gets."""

    calls: list[tuple]

    def begin(self, name, settings, folder):
        Heard.calls = [("begin", name, dict(settings), folder)]

    def log(self, values, step):
        Heard.calls.append(("log", step, dict(values)))

    def end(self, *, finished):
        Heard.calls.append(("end", finished))


class Failing(Heard):
    def log(self, values, step):
        raise ConnectionError("the tracker is gone")


@pytest.fixture
def loggers(monkeypatch):
    monkeypatch.setattr(run_loggers, "_OWN", {"heard": Heard, "failing": Failing})


def of_rounds(run):
    """Return the numbers of `rounds.jsonl` by round, named as loggers name them."""
    found = {}
    for line in (run / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        number, also = record.pop("round"), record.pop("also")
        parts = {"": record} | {f"{each['protocol']}/": each for each in also}
        values = {
            f"{protocol}{split}/{name}": value
            for protocol, part in parts.items()
            for split in ("validation", "test")
            for name, value in (part[split] or {}).items()
        }
        plain = {key: value for key, value in record.items() if isinstance(value, int | float)}
        found[number] = values | plain
    return found


def chosen_of(run):
    sample = json.loads((run / "results.json").read_text())["rows"][0]["results"]["full"]
    return {f"chosen/test/{key}": value for key, value in sample["samples"][0]["rates"].items()}


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_a_logger_gets_what_the_log_has_and_one_that_fails_ends_nothing(
    fedrec, settings_file, loggers
):
    options = ("--log", "failing", "--log", "heard")
    outcome = fedrec("simulate", settings_file, *SETTINGS, *options)
    assert outcome.code == 0
    note = [line for line in outcome.err.splitlines() if "the tracker is gone" in line]
    assert len(note) == 1 and "the logger failing failed" in note[0]
    run = Path(outcome.out.splitlines()[-1])
    (begin, name, settings, folder), *logged, end = Heard.calls
    assert (begin, name, folder) == ("begin", run.name, run)
    plan = load_settings(run / "resolved.toml").plan
    assert settings["algorithm.dim"] == str(plan.algorithm.dim)
    assert {key.partition(".")[0] for key in settings} == set(plan.model_dump())
    assert not [value for value in settings.values() if str(run.parent) in value]
    *rounds, last = logged
    assert {step: values for _, step, values in rounds} == of_rounds(run)
    assert last[2] == chosen_of(run)
    assert end == ("end", True)


@pytest.mark.slow
def test_the_printed_command_goes_on_with_the_loggers(fedrec, settings_file, loggers, monkeypatch):
    monkeypatch.setattr(StopRequest, "requested", lambda self: True)
    options = ("--log", "heard", "--log", "failing")
    stopped = fedrec("simulate", settings_file, *SETTINGS, *options)
    assert stopped.err.rpartition("To resume: fedrec ")[2].split()[-4:] == list(options)


@pytest.mark.slow
@pytest.mark.long
def test_each_seed_has_its_loggers(fedrec, settings_file):
    options = ("--seeds", "2", "--jobs", "1", "--log", "tensorboard")
    outcome = fedrec("simulate", settings_file, *SETTINGS, *options)
    for run in map(Path, outcome.out.splitlines()[-2:]):
        found = [event for event in events(run) if "validation/ndcg" in event[1]]
        assert [step for step, _ in found] == [2, 3, 4]


def test_an_unknown_logger_is_refused_before_anything_is_made(settings_file, fedrec, tmp_path):
    outcome = fedrec("simulate", settings_file, "--log", "paper")
    assert outcome.code == 2
    assert "There is no logger 'paper'" in outcome.err and "tensorboard" in outcome.err
    assert not (tmp_path / "runs").exists()


def test_a_logger_without_its_package_says_how_to_install_it(loggers, monkeypatch):
    monkeypatch.setattr(Heard, "modules", ("no_such_tracker",))
    with pytest.raises(SettingsError, match="needs no_such_tracker"):
        RunLoggers(["heard"], load_settings(algorithm="fedals"), None)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (f"{__name__}:Heard", ""),
        (f"{__name__}:RunLoggers", "cannot be used: "),
        ("no_such_module:Logger", "cannot be used: No module named"),
    ],
)
def test_a_package_adds_a_logger(monkeypatch, target, problem):
    point = EntryPoint("own", target, run_loggers.ENTRY_POINTS)
    monkeypatch.setattr(run_loggers, "entry_points", lambda group: [point])
    settings = load_settings(algorithm="fedals")
    if not problem:
        RunLoggers(["own"], settings, None).end(finished=True)
        assert Heard.calls[0][:2] == ("begin", settings.federation.name)
        return
    with pytest.raises(SettingsError, match=problem):
        RunLoggers(["own"], settings, None)


def events(run):
    """Return (step, values by tag) of each event of a run's TensorBoard files.

    A record is its length (8 bytes), a checksum (4), the event, and a checksum (4).
    """
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted((run / "tensorboard").iterdir()):
        raw, place = path.read_bytes(), 0
        while place < len(raw):
            (length,) = struct.unpack_from("<Q", raw, place)
            event = Event.FromString(raw[place + 12 : place + 12 + length])
            values = {value.tag: value.simple_value for value in event.summary.value}
            texts = {value.tag: value.tensor.string_val for value in event.summary.value}
            found.append((event.step, values | {k: v[0] for k, v in texts.items() if v}))
            place += length + 16
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_tensorboard_reads_back_every_number(fedrec, settings_file):
    outcome = fedrec("simulate", settings_file, *SETTINGS, "--log", "tensorboard")
    run = Path(outcome.out.splitlines()[-1])
    found: dict[int, dict] = {}
    for step, values in events(run):
        found.setdefault(step, {}).update(values)
    (text,) = [values for values in found.pop(0).items() if "settings" in values[0]]
    assert b"algorithm.dim = 4" in text[1]
    expected = of_rounds(run)
    expected[max(expected)] |= chosen_of(run)
    assert {step: set(values) for step, values in found.items()} == {
        step: set(values) for step, values in expected.items()
    }
    for step, values in expected.items():
        assert found[step] == pytest.approx(values, rel=1e-6)


@pytest.fixture
def mlflow_server(tmp_path, monkeypatch):
    """MLflow's own server with SQLite, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{tmp_path}/mlflow.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": f"{tmp_path}/artifacts",
    }
    # `mlflow server` itself needs the large package; this is the application that it serves.
    command = [sys.executable, "-m", "flask", "--app", "mlflow.server:app", "run"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | store, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.1)
        yield address, server
    finally:
        server.kill()
        server.wait()


@pytest.mark.long
@pytest.mark.usefixtures("without_figures")
def test_an_mlflow_server_has_every_number_and_its_loss_ends_nothing(
    fedrec, settings_file, mlflow_server, monkeypatch
):
    import mlflow

    # The first request makes the database, and a machine under load takes its time.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    outcome = fedrec("simulate", settings_file, *SETTINGS, "--log", "mlflow")
    assert outcome.code == 0 and "the logger" not in outcome.err
    run = Path(outcome.out.splitlines()[-1])
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedrec")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (run.name, "FINISHED")
    assert found.data.params["algorithm.dim"] == "4"
    expected = of_rounds(run)
    expected[max(expected)] |= chosen_of(run)
    for name in {name for values in expected.values() for name in values}:
        history = {
            each.step: each.value for each in client.get_metric_history(found.info.run_id, name)
        }
        assert history == {
            step: values[name] for step, values in expected.items() if name in values
        }
    assert set(found.data.metrics) == {name for values in expected.values() for name in values}
    _, server = mlflow_server
    server.kill()
    server.wait()
    alone = fedrec("simulate", settings_file, *SETTINGS, "--log", "mlflow")
    assert alone.code == 0 and "the logger mlflow failed" in alone.err
    assert (Path(alone.out.splitlines()[-1]) / "report.html").exists()


@pytest.mark.long
def test_weights_and_biases_offline_gets_no_path_and_no_host(fedrec, settings_file, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    outcome = fedrec("simulate", settings_file, *SETTINGS, "--log", "wandb")
    assert outcome.code == 0 and "the logger" not in outcome.err
    run = Path(outcome.out.splitlines()[-1])
    (record,) = (run / "wandb").glob("offline-run-*/*.wandb")
    content = record.read_bytes()
    assert b"algorithm.dim" in content and b"validation/ndcg" in content
    assert b"chosen/test/ndcg" in content
    for private in (str(run.parent), socket.gethostname()):
        assert len(private) < 4 or private.encode() not in content
