"""`fedrec evaluate`, and the table of `fedrec simulate`."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import SMALL, sets

from fedrec.data import generate
from fedrec.data.writing import write_interactions

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_figures")]

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
        ("--seeds", "many"),
        ("--seeds", "9223372036854775808,"), ("--lists-at", "121"),
        ("--budget", "0"), ("--skip", "popularity"), ("--resume", "nowhere"),
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


def test_lists_are_measured_by_activity_and_exported(fedrec, settings_file, tmp_path):
    options = ("--protocols", "full", "--seeds", "1", "--no-references", "--lists-at", "5,3")
    plain = fedrec("evaluate", settings_file, *SETTINGS, *options, "--json").json
    own = [row for row in plain["lists"] if row["method"] == "fedmf"]
    assert [row["at"] for row in own if row["group"] == "all"] == [3, 5]
    # With one test item for each user, HR and NDCG are those of the table, and MAP is MRR.
    (table,) = [row["results"]["full"] for row in plain["rows"] if row["method"] == "fedmf"]
    (at_five,) = [row for row in own if (row["group"], row["at"]) == ("all", 5)]
    for name in ("hr", "recall", "ndcg", "mrr"):
        assert at_five[name] == pytest.approx(table[name]["mean"], abs=1e-5)
    assert at_five["map"] == pytest.approx(at_five["mrr"])
    assert at_five["precision"] == pytest.approx(at_five["hr"] / 5)
    in_groups = [row for row in own if row["group"] != "all" and row["at"] == 5]
    assert sum(row["users"] for row in in_groups) == at_five["users"]
    kept = json.loads((Path(plain["run"]) / "lists.json").read_text())
    assert [row["rates"]["at"] for row in kept] == [row["at"] for row in plain["lists"]]
    assert (Path(plain["run"]) / "lists.parquet").exists()
    other = fedrec(
        "evaluate", settings_file, *SETTINGS, *options[:-1], "5", "--resume", plain["run"]
    )
    assert other.code == 5 and "has lists at 3,5, not at 5" in other.err
    without = fedrec("evaluate", settings_file, *SETTINGS, *options[:-2], "--resume", plain["run"])
    assert without.code == 5 and "was measured with --lists-at" in without.err
    (Path(plain["run"]) / "lists.json").write_text("[{")
    again = fedrec("evaluate", settings_file, *SETTINGS, *options, "--resume", plain["run"])
    assert again.code == 1 and "lists.json is damaged" in again.err

    out = tmp_path / "exported"
    options = (*options, "--split", "ratio", "--test-share", "0.4", "--export", out)
    found = fedrec("evaluate", settings_file, *SETTINGS, *options)
    assert found.code == 0, found.err
    name = next((out / "recbole").iterdir()).name
    test = (out / "recbole" / name / f"{name}.test.inter").read_text().splitlines()
    assert test[0] == "user_id:token\titem_id:token"
    # Of 12 items, 40 % are 4, and one is for validation.
    assert len(test) == 1 + 60 * 4
    frames = {path.stem: pq.read_table(path) for path in (out / "lenskit").iterdir()}
    assert frames.keys() == {"train", "valid", "test", "fedmf-seed-1", "popularity-seed-1"}
    assert [frames[part].num_rows for part in ("train", "valid", "test")] == [420, 60, 240]
    lists = frames["fedmf-seed-1"].to_pandas()
    assert list(lists.columns) == ["user_id", "item_id", "rank"]
    known = frames["train"].to_pandas()
    listed, trained = ({*each[["user_id", "item_id"]].itertuples(False)} for each in (lists, known))
    assert listed and not listed & trained

    for wrong in (("--split", "half"), ("--lists-at", "0"), ("--export", out)):
        assert fedrec("evaluate", settings_file, *wrong).code == 2
