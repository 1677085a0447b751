"""`fedrec evaluate`, and the table of `fedrec simulate`."""

import csv
import json
from pathlib import Path

import pytest
from command import SMALL, sets

from fedrec.data import generate
from fedrec.data.writing import write_interactions

pytestmark = pytest.mark.slow

SETTINGS = sets(*SMALL)


@pytest.fixture
def interactions_file(tmp_path):
    """Enough items for 99 candidates."""
    data = generate(
        n_users=60, n_items=120, n_clusters=3, interactions_per_user=12, noise=0.1, seed=3
    )
    folder = tmp_path / "data"
    folder.mkdir()
    write_interactions(folder / "interactions.csv", data.interactions)
    data.catalogue.save(folder / "catalogue.csv")
    return folder / "interactions.csv"


def test_item_tables_by_their_spectra(fedrec, settings_file, tmp_path):
    """Of what an evaluation trained, and of a run folder, whose model is another version."""
    out = tmp_path / "results"
    asked = ["--seeds", 1, "--protocols", "full", "--no-references", "--out", out, "--diagnostics"]
    outcome = fedrec("evaluate", settings_file, *asked, *SETTINGS)
    assert outcome.code == 0, outcome.err
    (record,) = json.loads((out / "diagnostics.json").read_text())
    (table,) = record["tables"]
    assert 100 < table["n_items"] <= 120
    assert f"item_embedding (shared, {table['n_items']} x 4): IA " in outcome.out
    spectrum = table["quality"]["spectrum"]
    assert table["quality"]["abundance"] == pytest.approx(sum(spectrum) / spectrum[0])
    assert 1 <= table["quality"]["n95"] <= table["quality"]["n99"] <= 4
    simulated = fedrec("simulate", settings_file, *SETTINGS)
    folder = simulated.out.splitlines()[-1]
    trained = fedrec("evaluate", folder, "--diagnostics", "--json")
    assert trained.code == 0, trained.err
    (found,) = json.loads(trained.out)["tables"]
    assert (found["table"], found["n_items"]) == ("item_embedding", table["n_items"])
    assert fedrec("evaluate", folder).code == 2


def test_one_table_with_references_and_its_files(fedrec, settings_file, tmp_path):
    out = tmp_path / "results"
    asked = ["--seeds", 2, "--budget", 2, "--skip", "centralised-ncf", "--skip", "centralised-mf"]
    asked += ["--out", out]
    outcome = fedrec("evaluate", settings_file, *asked, *SETTINGS)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == str(out)
    for name in (
        "fedmf",
        "popularity",
        "local training",
        "formula",
        "iALS",
        "EASE",
        "EDLAE",
        "ceiling",
    ):
        assert name in outcome.out
    assert "full difference" in outcome.out
    assert "on validation" in outcome.out
    assert "1/11  fedmf, full+sampled, seed 1" in outcome.err
    for ending in ("md", "csv", "json", "parquet"):
        assert (out / f"results.{ending}").is_file()
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["seed"] for row in rows} == {"1", "2"}
    assert {row["protocol"] for row in rows} == {"full", "sampled", "paper"}
    again = fedrec("evaluate", out / "resolved.toml", "--resume", out, *asked[:-2], "--json")
    assert again.json["rows"] == json.loads((out / "results.json").read_text())["rows"]
    assert "fedmf, full" not in again.err
    assert fedrec("evaluate", settings_file, "--out", out, *SETTINGS).code == 2
    before = (out / "resolved.toml").read_bytes()
    other = ("--resume", out, *asked[:-2], "--set", "rounds.total=3")
    assert "different settings" in fedrec("evaluate", out / "resolved.toml", *other).err
    assert (out / "resolved.toml").read_bytes() == before


def test_without_references_only_what_the_federation_measures(fedrec, settings_file):
    asked = ("--protocols", "paper", "--seeds", "7,", "--no-references", "--json")
    found = fedrec("evaluate", settings_file, *asked, *SETTINGS).json
    assert [row["method"] for row in found["rows"]] == [
        "fedmf", "popularity", "untrained", "know_nothing", "closed_formula",
    ]  # fmt: skip
    (sample,) = found["rows"][0]["results"]["paper"]["samples"]
    assert sample["seed"] == 7
    assert found["finished"]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--protocols", "complete"), ("--protocols", ""), ("--seeds", "0"), ("--seeds", "1,1"),
        ("--seeds", "many"), ("--budget", "0"), ("--skip", "popularity"), ("--resume", "nowhere"),
    ],
)  # fmt: skip
def test_a_wrong_option_stops_before_anything_begins(fedrec, settings_file, tmp_path, wrong):
    assert fedrec("evaluate", settings_file, *wrong).code == 2
    assert not (tmp_path / "runs").exists()


def test_a_folder_is_answered_with_its_settings(fedrec, tmp_path):
    outcome = fedrec("evaluate", tmp_path)
    assert outcome.code == 2
    assert "resolved.toml" in outcome.err


def test_simulate_has_full_and_sampled_side_by_side(fedrec, settings_file):
    outcome = fedrec("simulate", settings_file, *SETTINGS)
    assert outcome.code == 0, outcome.err
    assert "full HR@5" in outcome.out
    assert "sampled NDCG@5" in outcome.out
    run = Path(outcome.out.splitlines()[-1])
    assert (run / "results.md").read_text().startswith("| method | full HR@5 |")
    paper = fedrec(
        "simulate", settings_file, "--set", "evaluation.protocol=paper", *SETTINGS, "--json"
    ).json
    assert paper["table"]["protocols"] == ["paper"]
    assert "closed_formula" in {row["method"] for row in paper["table"]["rows"]}
