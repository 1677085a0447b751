"""`fedrec demo` from the first word to the last, and what is left when it is stopped."""

import json
import signal
from pathlib import Path

import pytest
from world.clock import poll
from world.kits import descendants, is_running

from fedrec import Recommender
from fedrec.plan.protections import about_protection

pytestmark = pytest.mark.slow

N_CHILDREN = 5
"""The coordinator, the key authority and three clients."""


def demo(start, folder, *arguments):
    return start(
        folder / "demo.log", "demo", "--protection", "none", "--synthetic",
        "--runs", str(folder / "runs"), *arguments,
    )  # fmt: skip


def test_it_runs_to_the_end(start, tmp_path, fedrec):
    running = demo(start, tmp_path, "--rounds", "3", "--json")
    assert running.ended() == 0, running.output
    summary = json.loads(running.out)
    (folder,) = (tmp_path / "runs").iterdir()
    assert Path(summary["folder"]) == folder
    assert len(summary["recommendations"]["items"]) == 10
    assert summary["abandoned"] == []
    for name in (
        "resolved.toml", "rounds.jsonl", "metrics.parquet", "ledger.json", "report.html",
        "environment.json", "model.safetensors",
    ):  # fmt: skip
        assert (folder / name).stat().st_size, name
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 5
    # In one process it comes out the same.
    assert summary["differences"] == []
    assert about_protection("none").statement in running.output
    arithmetic = json.loads((folder / "environment.json").read_text())["arithmetic"]
    assert arithmetic["device"] == "cpu"
    clients = sorted((folder / "kits" / "clients").iterdir())
    assert len(clients) == 3
    for client in clients:
        kept = json.loads((client / "state" / "environment.json").read_text())
        assert kept["arithmetic"] == arithmetic
    seen = summary["exposure"]
    # Without protection: three clients, a count, three rounds of training, a measurement.
    assert (seen["updates"], seen["readable_updates"]) == (15, 15)
    assert (seen["holds"], seen["problems"], seen["found"]) == (True, [], {})
    # All that was found stays, what it was found in does not.
    found = json.loads((folder / "wire-audit.json").read_text())
    assert {key: found[key] for key in seen} == seen
    assert found["findings"] and not (folder / "recording").exists()
    assert_it_recommends(fedrec, folder, summary)
    second = summary["second_act"]
    assert (second["plan"]["algorithm"]["name"], second["folder"]) == (
        "fedals", str(folder / "fedals"),
    )  # fmt: skip
    assert len((folder / "fedals" / "rounds.jsonl").read_text().splitlines()) == 12
    assert (folder / "fedals" / "report.html").stat().st_size
    # The clusters that were planted are found.
    popularity = summary["references"]["popularity (protected counts)"]
    assert second["test"]["ndcg"] > 1.5 * popularity["ndcg"]


@pytest.mark.long
def test_under_masks_no_party_reads_an_update(start, tmp_path):
    running = demo(
        start, tmp_path, "--protection", "masks", "--rounds", "1", "--no-compare",
        "--no-second-act", "--json",
    )  # fmt: skip
    assert running.ended() == 0, running.output
    summary = json.loads(running.out)
    assert summary["abandoned"] == []
    seen = summary["exposure"]
    # Three clients, a count, one round of training, a measurement.
    assert (seen["updates"], seen["readable_updates"]) == (9, 0)
    assert (seen["holds"], seen["problems"], seen["found"]) == (True, [], {})


def _rows_of(kit):
    return (kit / "interactions.csv").read_text().splitlines()


def assert_it_recommends(fedrec, folder, summary):
    """Check that the run's folder answers for users of other clients, without their vectors."""
    assert not (folder / "users.safetensors").exists()
    recommender = Recommender.load(folder)
    assert recommender.user_ids == ()
    # Client 1's own answer is in the summary.
    rows = _rows_of(folder / "kits" / "clients" / "client-3")
    user = rows[1].split(",")[0]
    seen = {row.split(",")[1] for row in rows if row.startswith(f"{user},")}
    found = fedrec("recommend", folder, "--user", user, "-n", 5, "--json").json
    assert found["round"] == summary["best_version"]
    assert len({item["item_id"] for item in found["items"]} - seen) == 5


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_it_leaves_no_process_behind(start, tmp_path, number):
    running = demo(start, tmp_path, "--rounds", "500", "--no-compare")
    children = poll(lambda: all_there(running), "children")
    poll(lambda: list(tmp_path.glob("runs/*/rounds.jsonl")), "a published round")
    running.process.send_signal(number)
    assert running.ended() == (-number if number == signal.SIGKILL else 130), running.output
    poll(lambda: not [child for child in children if is_running(child)], "the children's end")
    assert "Traceback" not in running.output


def all_there(running):
    """Return the children, once all of them run."""
    assert running.process.poll() is None, running.output
    children = descendants(running.process.pid)
    return children if len(children) >= N_CHILDREN else set()
