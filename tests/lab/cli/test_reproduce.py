"""`fedrec reproduce` on a small row of its own, without published data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrec.algorithms import FedMFSettings
from fedrec.data import PUBLIC, generate
from fedrec.data.public import Counts, KnownCopy, PublicDataset
from fedrec.data.writing import write_interactions
from fedrec.updates.update import UpdateSettings
from fedrec_lab.papers import ROWS, PublishedRow, paper_plan
from fedrec_lab.reports.round_progress import StopRequest

TINY = PublicDataset(
    title="Tiny", source="https://example.org/tiny", licence="Free.", citation="Nobody.",
    copies=(
        KnownCopy(
            file="interactions.csv", layout="csv", sha256=None,
            counts=Counts(minimum=1, users=60, items=120, interactions=720),
        ),
    ),
    get="fedrec data import tiny interactions.csv",
)  # fmt: skip


def _row(name: str, hr: float) -> PublishedRow:
    plan = paper_plan(FedMFSettings(dim=4), UpdateSettings(structure="dense", clip=8.0), rounds=3)
    return PublishedRow(
        name=name, dataset="tiny", minimum_interactions=5, hr=hr, ndcg=hr / 2,
        source="A test, table 1", note="Small.", plan=plan, minutes=0.1,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def registry(tmp_path, monkeypatch):
    """Two rows on a data set called tiny, and an empty cache."""
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "cache"))
    rows = {row.name: row for row in (_row("tiny/a", 0.5), _row("tiny/b", 0.001))}
    public = {**PUBLIC, "tiny": TINY}
    for module in ("data", "data.public", "data.fetching", "settings.validation"):
        monkeypatch.setattr(f"fedrec.{module}.PUBLIC", public)
    for module in ("papers", "papers.reproduction"):
        monkeypatch.setattr(f"fedrec_lab.{module}.ROWS", {**ROWS, **rows})


@pytest.fixture
def interactions_file(tmp_path):
    """Enough items for 99 candidates."""
    data = generate(
        n_users=60, n_items=120, n_clusters=3, interactions_per_user=12, noise=0.1, seed=3
    )
    path = tmp_path / "interactions.csv"
    write_interactions(path, data.interactions)
    return path


@pytest.fixture
def imported(fedrec, interactions_file):
    """The data set in the cache."""
    outcome = fedrec("data", "import", "tiny", interactions_file, "--json")
    assert outcome.code == 0
    assert outcome.json["n_users"] == 60


def test_missing_data_is_named_with_its_source(fedrec, tmp_path):
    outcome = fedrec("reproduce", "tiny/a", "--out", tmp_path / "runs")
    assert outcome.code == 2
    assert "Tiny (interactions.csv) is not on this machine" in outcome.err
    assert "https://example.org/tiny" in outcome.err
    assert "fedrec data import tiny interactions.csv" in outcome.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("--set", "algorithm.dim=abc"), "algorithm.dim"),
        (("--set", "algorithm.dimension=8"), "algorithm.dimension"),
        (("--device", "abacus"), "client.device"),
    ],
)
def test_a_setting_that_cannot_be_is_named_and_leaves_nothing(
    fedrec, tmp_path, imported, options, key
):
    outcome = fedrec("reproduce", "tiny", *options, "--out", tmp_path / "runs")
    assert outcome.code == 2
    assert key in outcome.err and options[1].rpartition("=")[2] in outcome.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_published_reproduced_and_honest_side_by_side(fedrec, tmp_path, imported):
    found = fedrec("reproduce", "tiny", "--out", tmp_path / "runs", "--json").json
    assert found["finished"]
    assert [row["name"] for row in found["rows"]] == ["tiny/a", "tiny/b"]
    for row in found["rows"]:
        assert [run["protocol"] for run in row["runs"]] == ["paper", "sampled", "full"]
        assert {"popularity", "know_nothing", "untrained"} <= row["runs"][0]["references"].keys()
        paper = row["runs"][0]["test"]["hr"]
        assert row["difference_hr"] == pytest.approx(paper - row["published"]["hr"])
        assert row["reproduced"] == (abs(row["difference_hr"]) <= 0.01005)
    folder = Path(found["run"])
    assert json.loads((folder / "reproduction.json").read_text())["rows"] == found["rows"]
    assert "## tiny/b" in (folder / "reproduction.md").read_text()
    # Both rows have the same plan: only what was published differs.
    first, second = found["rows"]
    assert first["runs"][0]["test"] == second["runs"][0]["test"]
    # One training is measured under both honest protocols, as alone under each.
    alone = fedrec(
        "reproduce", "tiny/a", "--protocols", "full", "--out", tmp_path / "alone", "--json"
    ).json
    assert alone["rows"][0]["runs"][0]["test"] == first["runs"][2]["test"]
    part = folder / "tiny-a" / "sampled-full-seed-1"
    assert {path.name for path in part.iterdir()} == {
        "environment.json", "measured.json", "metrics.parquet", "resolved.toml", "rounds.jsonl",
    }  # fmt: skip


def test_a_shortened_or_changed_run_gets_no_verdict(fedrec, tmp_path, imported):
    outcome = fedrec(
        "reproduce", "tiny/a", "--out", tmp_path, "--rounds", 2, "--protocols", "paper",
        "--seeds", 2, "--set", "algorithm.learning_rate=0.1",
    )  # fmt: skip
    assert outcome.code == 0
    assert "2 rounds in place of 3, algorithm.learning_rate = 0.1" in outcome.out
    assert "±" in outcome.out
    assert "honest" not in outcome.out
    folder = Path(outcome.out.splitlines()[-1])
    assert len((folder / "tiny-a" / "paper-seed-2" / "rounds.jsonl").read_text().splitlines()) == 4
    assert "learning_rate = 0.1" in (folder / "tiny-a/paper-seed-1/resolved.toml").read_text()


def test_other_data_than_the_paper_s_gets_no_verdict(fedrec, tmp_path, interactions_file):
    shorter = interactions_file.with_name("shorter.csv")
    rows = interactions_file.read_text().splitlines(keepends=True)
    shorter.write_text("".join(rows[:-1]))
    warned = fedrec("data", "import", "tiny", shorter)
    assert "warning: It has 719 interactions" in warned.err
    out = ("--out", tmp_path / "runs")
    found = fedrec("reproduce", "tiny/a", "--protocols", "paper", *out, "--json").json["rows"]
    assert found[0]["reproduced"] is None
    assert "other data (719 interactions" in found[0]["verdict"]


@pytest.mark.slow
def test_stopped_and_resumed_it_is_the_same(fedrec, tmp_path, imported, monkeypatch):
    whole = fedrec("reproduce", "tiny/a", "--out", tmp_path / "whole", "--json").json
    asked = iter([False] * 6)
    with monkeypatch.context() as patched:
        # Within the second protocol: each has five rounds, no stop is looked for after the last.
        patched.setattr(StopRequest, "requested", lambda self: next(asked, True))
        stopped = fedrec("reproduce", "tiny/a", "--out", tmp_path / "stopped")
    assert stopped.code == 130
    assert "--resume" in stopped.err
    folder = stopped.out.splitlines()[-1]
    resumed = fedrec("reproduce", "--resume", folder, "--json").json

    (first,), (second,) = resumed["rows"], whole["rows"]
    for run in (*first["runs"], *second["runs"]):
        del run["seconds"]
    assert first == second


def test_it_goes_on_elsewhere_only_if_asked(fedrec, tmp_path, imported, monkeypatch):
    # Some machines set it.
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    asked = iter([False] * 2)
    with monkeypatch.context() as patched:
        patched.setattr(StopRequest, "requested", lambda self: next(asked, True))
        stopped = fedrec("reproduce", "tiny/a", "--protocols", "paper", "--out", tmp_path / "runs")
    folder = Path(stopped.out.splitlines()[-1])
    record = folder / "tiny-a" / "paper-seed-1" / "environment.json"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    # Part of the arithmetic; the library is loaded already and does not look at it.
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    refused = fedrec("reproduce", "--resume", folder)
    assert refused.code == 5
    assert "OPENBLAS_CORETYPE is Prescott, not absent" in refused.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert fedrec("reproduce", "--resume", folder, "--accept-other-arithmetic").code == 0
    (change,) = json.loads(record.read_text())["accepted"]
    assert change["round"] == 3
    # Without its number the record is an older fedrec's.
    record.write_text("{}")
    older = fedrec("reproduce", "--resume", folder)
    assert older.code == 5
    assert "paper-seed-1 has no format number, made by an older fedrec" in older.err


def test_what_cannot_be_asked_for(fedrec, tmp_path, imported):
    for arguments, sentence in (
        ((), "name of a row is missing"),
        (("nobody/nothing",), "no published row 'nobody/nothing'"),
        (("tiny/a", "--protocols", "paper,fair"), "no protocol 'fair'"),
        (("tiny/a", "--set", "rounds.total=5"), "Use --rounds"),
        (("tiny/a", "--set", "data.path=x"), "has no effect"),
        (("tiny/a", "--set", "algorithm.dim=no"), "algorithm.dim"),
        (("--resume", tmp_path), "a folder of `fedrec reproduce`"),
        (("--resume", tmp_path, "--rounds", 5), "takes no name and no other options"),
        (("fedmf/ml-100k", "--resume", tmp_path), "takes no name and no other options"),
        (("colr/costs", "--resume", tmp_path), "takes no name and no other options"),
    ):
        outcome = fedrec("reproduce", *arguments, "--out", tmp_path / "runs")
        assert outcome.code == 2
        assert sentence in outcome.err


def test_the_list_says_whose_data_is_here(fedrec, imported):
    outcome = fedrec("reproduce", "--list", "--json")
    available = {row["name"]: row["data_available"] for row in outcome.json["rows"]}
    assert available["tiny/a"] and not available["pfedrec/ml-100k"]
    shown = fedrec("reproduce", "--list")
    assert "0.7162 / 0.4344" in shown.out
    assert "ml-100k is not on this machine" in shown.err
