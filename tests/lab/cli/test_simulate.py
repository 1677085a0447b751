"""`fedrec simulate` and what `fedrec recommend` makes of its run."""

from __future__ import annotations

import gc
import json
import re
import signal
from pathlib import Path
from unittest.mock import patch

import pytest
from command import SMALL, sets
from world.plans import params

from fedrec import load_data, load_settings
from fedrec.cli.flags import tell_rows
from fedrec.cli.terminal import human_bytes, human_share
from fedrec.data import generate, splits
from fedrec.data.mapped_items import MappedItems
from fedrec_lab.reports.round_progress import StopRequest
from fedrec_lab.reports.run_summary import summary_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_figures")]


def small(*more):
    return sets(*SMALL, *more)


def test_the_last_line_is_the_run_and_it_recommends(fedrec, settings_file, tmp_path):
    outcome = fedrec("simulate", settings_file, *small())
    assert outcome.code == 0, outcome.err
    run = Path(outcome.out.splitlines()[-1])
    assert run.parent == tmp_path / "runs"
    assert "popularity" in outcome.out
    assert [line.split("  ")[0] for line in outcome.err.splitlines()] == [
        f"round {number}/4" for number in (1, 2, 3, 4)
    ]
    user = (tmp_path / "data" / "interactions.csv").read_text().splitlines()[1].split(",")[0]
    found = fedrec("recommend", run, "--user", user, "-n", 3, "--json").json
    assert [item["rank"] for item in found["items"]] == [1, 2, 3]
    items = (tmp_path / "data" / "catalogue.csv").read_text().splitlines()
    history = ("--history", items[2].split(",")[0], "--history", items[3].split(",")[0])
    assert fedrec("recommend", run, *history).code == 0
    assert fedrec("recommend", run, "--user", "nobody").code == 2
    assert fedrec("recommend", run).code == 2
    assert fedrec("recommend", tmp_path, "--user", user).code == 2


def test_the_printed_command_goes_on_whatever_flags_were_given(fedrec, settings_file, monkeypatch):
    flags = ("--clients", 3, "--protect")
    whole = fedrec("simulate", settings_file, *small(), *flags)
    with monkeypatch.context() as patched:
        patched.setattr(StopRequest, "requested", lambda self: True)
        stopped = fedrec("simulate", settings_file, *small(), *flags)
    assert stopped.code == 130
    command = stopped.err.rpartition("To resume: fedrec ")[2].split()
    assert command[-3:] == ["--clients", "3", "--protect"]
    resumed = fedrec(*command)
    assert resumed.code == 0, resumed.err
    # Tables and models are the same, byte by byte; the last line is the folder.
    assert resumed.out.splitlines()[:-1] == whole.out.splitlines()[:-1]
    models = [Path(out.splitlines()[-1], "model.safetensors") for out in (whole.out, resumed.out)]
    assert models[0] != models[1]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_a_run_goes_on_to_the_same_bits_with_its_users_in_files(
    fedrec, settings_file, tmp_path, monkeypatch
):
    whole = fedrec("simulate", settings_file, *small())
    with monkeypatch.context() as patched:
        patched.setattr(StopRequest, "requested", lambda self: True)
        stopped = fedrec("simulate", settings_file, *small())
    monkeypatch.setattr(splits, "MOST_FILE_USERS", 7)
    with patch.object(MappedItems, "written", side_effect=MappedItems.written) as written:
        resumed = fedrec(*stopped.err.rpartition("To resume: fedrec ")[2].split())
    assert resumed.code == 0 and written.call_count == 1, resumed.err
    assert resumed.out.splitlines()[:-1] == whole.out.splitlines()[:-1]
    models = [Path(out.splitlines()[-1], "model.safetensors") for out in (whole.out, resumed.out)]
    assert models[0].read_bytes() == models[1].read_bytes()
    gc.collect()
    assert len([*(tmp_path / "runs").iterdir()]) == 2


@pytest.mark.parametrize(
    "command",
    params(
        ("tune", "--try", "algorithm.dim=4,8"),
        long=[
            ("simulate", "--seeds", "1,2", "--jobs", 2),
            ("evaluate", "--protocols", "full", "--lists-at", 5, "--budget", 1),
        ],
    ),
    ids=lambda command: command[0],
)
def test_other_commands_find_the_same_with_users_in_files(
    command, fedrec, settings_file, tmp_path, monkeypatch
):
    def found():
        outcome = fedrec(command[0], settings_file, *small(), *command[1:], "--json")
        assert outcome.code == 0, outcome.err
        return json.loads(re.sub(r'"[^"]*/runs/[^"]*"', '""', json.dumps(outcome.json)))

    in_memory = found()
    monkeypatch.setattr(splits, "MOST_FILE_USERS", 7)
    with patch.object(MappedItems, "written", side_effect=MappedItems.written) as written:
        assert found() == in_memory
    assert written.call_count == 1
    gc.collect()
    assert not list((tmp_path / "runs").glob("**/fedrec-*"))


def test_protecting_changes_no_bit_of_the_result(fedrec, settings_file):
    plain = fedrec("simulate", settings_file, *small(), "--clients", 3, "--json").json
    protected = fedrec("simulate", settings_file, *small(), "--protect", "--json").json
    assert plain["results"] == protected["results"]
    assert set(plain) == {
        "run", "finished", "rounds", "best_round", "at", "results", "table", "cells",
    }  # fmt: skip


def test_a_model_of_noise_alone_is_refused_with_a_remedy(fedrec, tmp_path, interactions_file):
    path = tmp_path / "noise.toml"
    ease = ("--algorithm", "ease", "--clients", 3)
    assert fedrec("init", path, "--data", interactions_file, *ease).code == 0
    noise = sets("privacy.mechanism=gaussian", "privacy.epsilon=0.2", "rounds.total=2")
    few = sets("federation.minimum_item_users=1")
    trained = fedrec("simulate", path, *noise, *few, "--clients", 1)
    assert trained.code == 1, trained.err
    assert "warning: --clients is 1, but under privacy.mechanism" in trained.err
    assert "privacy.epsilon = 0.2" in trained.err and "fedrec check" in trained.err
    items = (tmp_path / "data" / "catalogue.csv").read_text().splitlines()
    run = trained.out.splitlines()[-1]
    refused = fedrec("recommend", run, "--history", items[2].split(",")[0])
    assert refused.code == 1
    assert "privacy.epsilon = 0.2" in refused.err
    seeds = fedrec("simulate", path, *noise, *few, "--seeds", "1,", "--jobs", 1)
    assert seeds.code == 1, seeds.err
    assert "Seed 1: " in seeds.err
    out = tmp_path / "results"
    measured = ("--seeds", 1, "--protocols", "full", "--no-references", "--json")
    for asked in ((path, "--out", out, *noise, *few), (out / "resolved.toml", "--resume", out)):
        found = fedrec("evaluate", *asked, *measured)
        assert (found.code, found.json["error"]) == (1, "no_information"), found.err


def test_more_dimensions_than_rows_are_warned_of_before_training(capsys):
    made = generate(n_users=30, n_items=20, n_clusters=2, interactions_per_user=6, seed=1)
    users, catalogue = load_data(made.interactions)
    for algorithm in ("fedals", "sketch"):
        values = {"algorithm.dim": 64, "federation.minimum_item_users": 3}
        settings = load_settings(algorithm=algorithm, values=values, environ={})
        tell_rows(settings, users, len(catalogue), n_clients=1, cells=())
        (seen,) = capsys.readouterr().err.splitlines()
        assert seen.startswith("warning: algorithm.dim = 64, but enough users hold only")


def test_exposing_clients_takes_a_flag(fedrec, tmp_path, interactions_file):
    path = tmp_path / "ease.toml"
    ease = ("--algorithm", "ease", "--clients", 3)
    assert fedrec("init", path, "--data", interactions_file, *ease).code == 0
    few = ("--set", "federation.minimum_item_users=2", "--set", "rounds.total=2")
    plain = (*few, "--set", "protection.name=none")
    refused = fedrec("simulate", path, *plain)
    assert refused.code == 5
    assert "--accept-exposure" in refused.err
    assert not (tmp_path / "runs").exists()
    accepted = fedrec("simulate", path, *plain, "--clients", 3, "--accept-exposure", "--json").json
    protected = fedrec("simulate", path, *few, "--protect", "--json").json
    assert accepted["results"] == protected["results"]
    user = interactions_file.read_text().splitlines()[1].split(",")[0]
    found = fedrec("recommend", accepted["run"], "--user", user, "-n", 2, "--json").json
    assert len(found["items"]) == 2


@pytest.mark.long
def test_seeds_side_by_side_are_the_runs_of_each(fedrec, settings_file, tmp_path):
    clients = ("--clients", "2")
    outcome = fedrec("simulate", settings_file, *small(), "--seeds", "2,7", *clients, "--json")
    assert outcome.code == 0, outcome.err
    assert [entry["seed"] for entry in outcome.json["seeds"]] == [2, 7]
    for entry in outcome.json["seeds"]:
        assert f"seed-{entry['seed']}" in entry["run"]
        assert summary_of(Path(entry["run"])).flags == clients
        lines = [
            line for line in outcome.err.splitlines() if line.startswith(f"seed {entry['seed']} ")
        ]
        assert [line.split("  ")[1] for line in lines] == [f"round {n}/4" for n in (1, 2, 3, 4)]
    seven = fedrec("simulate", settings_file, *small("federation.seed=7"), *clients, "--json").json
    assert seven["results"] == outcome.json["seeds"][1]["results"]
    assert seven["results"] != outcome.json["seeds"][0]["results"]


@pytest.mark.parametrize("seeds", ["", " ", ",", "0"])
def test_seeds_that_name_none_are_told_and_leave_nothing(fedrec, settings_file, tmp_path, seeds):
    outcome = fedrec("simulate", settings_file, *small(), "--seeds", seeds)
    assert outcome.code == 2
    assert f"--seeds is {seeds!r}" in outcome.err
    assert not (tmp_path / "runs").exists()


def test_a_run_that_cannot_begin_leaves_no_folder(fedrec, settings_file, tmp_path):
    """Which devices there are is known only to torch, when training begins."""
    outcome = fedrec("simulate", settings_file, *small("client.device=cuda:9"))
    assert outcome.code == 2
    assert 'client.device is "cuda:9"' in outcome.err
    assert list((tmp_path / "runs").iterdir()) == []


def test_options_of_seeds_that_do_not_go_together(fedrec, settings_file):
    for options in (
        ("--seeds", "1,x"),
        ("--seeds", "1,1"),
        ("--seeds", "1,2", "--resume", "somewhere"),
        ("--jobs", 2),
    ):
        assert fedrec("simulate", settings_file, *options).code == 2


def test_settings_are_checked_first(fedrec, settings_file, tmp_path):
    assert fedrec("simulate", settings_file, "--set", "update.rank=99").code == 2
    assert fedrec("simulate", settings_file, "--set", "rounds.total").code == 2
    assert not (tmp_path / "runs").exists()


def test_the_first_ctrl_c_asks_and_the_second_stops(capsys):
    stop = StopRequest("Stopping.")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop.on_interrupt():
        signal.raise_signal(signal.SIGINT)
        assert stop.requested()
        assert capsys.readouterr().err == "Stopping.\n"
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_numbers_have_units():
    sizes = [0, 1023, 1024, 1536, 1024**2 - 1, 1024**2, 5 * 1024**3, 1024**5]
    assert [human_bytes(size) for size in sizes] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "1024 KiB", "1 MiB", "5 GiB", "1024 TiB",
    ]  # fmt: skip
    assert human_share(1, 4) == "25 %"
    assert human_share(30, 2) == "15.0 x"


def test_a_spent_budget_has_its_exit_code(fedrec, settings_file, interactions_file):
    """By dp-accounting noise of four clips costs 1.356 after two rounds, 1.698 after three."""
    asked = (
        "privacy.mechanism=gaussian",
        "privacy.noise_multiplier=4",
        "privacy.epsilon=1.5",
        "privacy.rounds_per_user=0",
        "rounds.total=4",
        "protection.name=bfv",
    )
    outcome = fedrec("simulate", settings_file, *sets(*asked))
    assert outcome.code == 4
    assert "privacy.epsilon = 1.5" in outcome.err
    found = fedrec("simulate", settings_file, *sets(*asked), "--json")
    assert found.code == 4, "one object has the result and why it ended"
    assert found.json["error"] == "privacy_budget_spent"
    assert found.json["best_round"] >= 1 and "privacy.epsilon = 1.5" in found.json["message"]
