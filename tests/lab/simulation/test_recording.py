"""The run folder that a simulation leaves behind."""

import json

import pytest
from world.clock import FakeClock

from fedrec import Recommender
from fedrec.algorithms import ease
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec_lab.reports.figures import message_sizes
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation import record_simulation, simulate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(settings_of, data, tmp_path_factory):
    users, catalogue = data
    settings = settings_of(
        federation={"name": "films"}, protection={"name": "bfv"}, rounds={"total": 3}
    )
    run = RunFolder.create(tmp_path_factory.mktemp("out") / "runs", "films", FakeClock())
    result = simulate(
        settings, users=users, catalogue=catalogue, folder=run.path, on_round=run.append_round
    )
    record_simulation(result, run)
    return result, run


def test_every_file_is_there(recorded):
    result, run = recorded
    names = {path.name for path in run.path.iterdir()}
    assert names == {
        "catalogue.csv",
        "environment.json",
        "ledger.json",
        "metrics.parquet",
        "model.safetensors",
        "ranks.parquet",
        "report.html",
        "report.json",
        "resolved.toml",
        "results.csv",
        "results.json",
        "results.md",
        "results.parquet",
        "rounds.jsonl",
        "users.safetensors",
    }
    assert run.path.name == "films-20231114-221320"
    assert run.rounds() == result.rounds
    again = load_settings(run.path / "resolved.toml", environ={})
    assert again.plan == result.settings.plan
    ledger = json.loads((run.path / "ledger.json").read_text())
    assert ledger["differential_privacy"] is False
    assert [release["kind"] for release in ledger["releases"]] == ["count", "train", "evaluate"]
    page = (run.path / "report.html").read_text()
    assert "films: fedmf" in page
    assert page.count("<svg") == 7


def test_the_model_of_the_folder_recommends(recorded):
    result, run = recorded
    recommender = Recommender.load(run.path)
    assert recommender.round == result.best.round
    ids, scores = recommender.recommend(result.users.user_ids[0], 5)
    assert len(ids) == len(scores) == 5


def test_sizes_name_what_the_settings_chose(settings_of):
    plan = settings_of(protection={"name": "bfv"}).plan
    bars = {bar.label: bar for bar in message_sizes(plan, 90)}
    assert [label for label, bar in bars.items() if bar.chosen] == ["this run: colr, bfv default"]
    assert bars["dense table, plain float32"].n_bytes == 4 * 90 * plan.algorithm.dim
    # Whole blocks of N = 16384 are sent: two values more than fit need one block more.
    paper = bars["the same update, the paper's CKKS set"].n_bytes
    assert paper > bars["this run: colr, bfv default"].n_bytes
    assert bars["the same update, plain integers"].n_bytes < paper


def test_a_catalogue_larger_than_the_algorithm_takes_is_recorded(
    settings_of, data, tmp_path, monkeypatch
):
    """The rows of the items that enough users hold are few enough; the catalogue's are not."""
    monkeypatch.setattr(ease, "MOST_PAIRS_AT_ONCE", 256 * 255 // 2)
    users, catalogue = data
    larger = catalogue.append([f"never held {number}" for number in range(300)])
    settings = settings_of(update={"structure": "dense"}, rounds={"total": 2})
    fields = settings.model_dump() | {"algorithm": {"name": "ease"}}
    settings = Settings.model_validate(fields)
    run = RunFolder.create(tmp_path / "runs", "films", FakeClock())
    found = simulate(settings, users=users, catalogue=larger, folder=run.path)
    record_simulation(found, run)
    assert "upload-sizes" in (run.path / "report.json").read_text()
