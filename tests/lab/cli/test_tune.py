"""`fedrec tune`: settings and algorithms side by side on validation."""

import json
import os
import shlex
import signal
import subprocess
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from command import sets

from fedrec.extras import install_command
from fedrec.processes import child_command, module_search_path
from fedrec.settings.validation import load_settings
from fedrec_lab.reports.round_progress import StopRequest

FLAGS = sets(
    "rounds.total=3", "algorithm.dim=4", "federation.minimum_item_users=1", "client.threads=1"
)


@pytest.fixture
def settings_file(fedrec, tmp_path, interactions_file):
    path = tmp_path / "run.toml"
    assert fedrec("init", path, "--data", interactions_file, "--clients", 3).code == 0
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_the_best_settings_are_printed_as_the_file_takes_them(fedrec, settings_file):
    flattened = ["--set", "algorithm.regularisation=100000", *FLAGS]
    asked = ["--try", "algorithm.regularisation=10,100000"]
    outcome = fedrec("tune", settings_file, *asked, *flattened)
    assert outcome.code == 0, outcome.err
    assert "starting settings" in outcome.out
    assert "popularity" in outcome.out
    # The second of the two is the file's own, and is not trained again.
    assert outcome.err.count("NDCG") == 2
    assert outcome.out.splitlines()[-3:-1] == ["[algorithm]", "regularisation = 10.0"]
    found = fedrec("tune", settings_file, *asked, *flattened, "--json").json
    assert [trial["values"] for trial in found["trials"]] == [
        {"algorithm.regularisation": 10.0}, {},
    ]  # fmt: skip
    assert found["trials"][0]["rates"]["ndcg"] > found["trials"][1]["rates"]["ndcg"]
    assert found["above_popularity"] == (
        found["best"]["rates"]["ndcg"] > found["popularity"]["ndcg"]
    )
    with patch.object(StopRequest, "requested", lambda self: True):
        stopped = fedrec("tune", settings_file, *asked, *flattened)
    assert stopped.code == 130 and "--resume" in stopped.err, stopped.err


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_algorithms_are_compared_from_data_and_the_winner_can_be_simulated(
    fedrec, interactions_file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    quick = sets("rounds.total=3", "federation.minimum_item_users=1", "client.threads=1")
    outcome = fedrec(
        "tune", interactions_file, "--algorithms", "fedals,sketch,ease", "--trials", 2,
        "--sampler", "random", *quick, "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    found = outcome.json
    # All dims that sketch would try are above the 30 items.
    tried = [trial["algorithm"] for trial in found["trials"]]
    assert {name: tried.count(name) for name in tried} == {"fedals": 2, "sketch": 1, "ease": 2}
    assert found["difference"]["difference"]["low"] <= found["difference"]["difference"]["estimate"]
    best = f"{found['run']}/best.toml"
    ran = fedrec("simulate", best, *sets("output.runs=after"), "--json")
    assert ran.code == 0, ran.err
    assert load_settings(best, environ={}).algorithm.name == found["best"]["algorithm"]


@pytest.mark.slow
def test_all_values_are_checked_before_anything_is_trained(fedrec, settings_file, tmp_path):
    wrong = (
        (("--try", "algorithm.alpha=5,-1"), "algorithm.alpha = -1.0"),
        (("--algorithms", "fedals,als"), "'als'"),
        (("--sampler", "bayes"), "grid, random, tpe"),
        (("--sampler", "grid"), "combinations"),
    )
    for asked, word in wrong:
        outcome = fedrec("tune", settings_file, *asked, *FLAGS)
        assert outcome.code == 2
        assert word in outcome.err
        assert "NDCG" not in outcome.err
    assert not list((tmp_path / "runs").glob("*"))


def test_without_optuna_the_smallest_extra_is_told(fedrec, settings_file, monkeypatch):
    monkeypatch.setattr("fedrec.extras.is_missing", lambda name: name == "optuna")
    outcome = fedrec("tune", settings_file)
    assert outcome.code == 2
    assert install_command("tune") in outcome.err


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_stops_processes_and_the_printed_command_goes_on(fedrec, settings_file, tmp_path):
    more = sets("rounds.total=20", "federation.minimum_item_users=1", "client.threads=1")
    asked = ["tune", settings_file, "--try", "algorithm.alpha=5,10", "--seeds", "2", "--jobs", "2"]
    asked += [*more, "--set", f"output.runs={tmp_path}/runs"]
    command = [*child_command("fedrec"), *map(str, asked)]
    environment = os.environ | {"PYTHONPATH": module_search_path()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes) as process:
        # The first trial is done: two of four trainings.
        seen = [process.stderr.readline()]
        while "NDCG" not in seen[-1]:
            assert seen[-1], seen
            seen.append(process.stderr.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "results.json").read_text())["finished"] is False
    again = shlex.split(err[err.index("To resume: ") :].removeprefix("To resume: "))
    ended = fedrec(*again[1:], "--json")
    assert ended.json["finished"] and len(ended.json["trials"]) == 2
    # Only the second trial was left.
    assert ended.err.count("NDCG") == 1
    assert pq.read_table(run / "trials.parquet").num_rows == 4
    assert not (run / "trainings").exists()
