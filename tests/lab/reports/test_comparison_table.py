"""The table that holds protocols side by side."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedrec.evaluation.metrics import Rates
from fedrec_lab.reports.comparison_table import (
    ComparisonRow,
    ComparisonTable,
    Sample,
    paired_bootstrap,
)


def sample(seed, hr, ndcg, chosen=""):
    return Sample(
        seed=seed, rates=Rates(users=5, hr=hr, recall=hr, ndcg=ndcg, mrr=0.1), chosen=chosen
    )


@pytest.fixture
def table():
    own = ComparisonRow(
        method="fedmf",
        label="fedmf | own",
        samples={
            "full": (sample(1, 0.1, 0.04, "round 9"), sample(2, 0.3, 0.06, "round 12")),
            "paper": (sample(1, 0.5, 0.25, "round 3"), sample(2, 0.5, 0.25, "round 3")),
        },
    )
    missing = ComparisonRow(method="ials", label="iALS", samples={}, note="not installed")
    return ComparisonTable(rows=(own, missing), protocols=("full", "paper"), at=10)


def test_means_and_deviations_over_seeds(table):
    # Mean .2 and .05; deviation of two values is their difference by the root of two.
    assert table.headings == [
        "method", "full HR@10", "full NDCG@10", "paper HR@10", "paper NDCG@10", "seeds",
        "chosen on validation",
    ]  # fmt: skip
    assert table.cells(table.rows[0]) == [
        "fedmf | own", "0.2000 ± 0.1414", "0.0500 ± 0.0141", "0.5000 ± 0.0000",
        "0.2500 ± 0.0000", "2", "full: round 9/12; paper: round 3",
    ]  # fmt: skip
    assert table.cells(table.rows[1]) == ["iALS", "-", "-", "-", "-", "-", ""]


def test_the_same_choice_everywhere_is_said_once():
    row = ComparisonRow(
        method="ease",
        label="EASE",
        samples={name: (sample(1, 0.1, 0.1, "lambda 300"),) for name in ("full", "sampled")},
    )
    table = ComparisonTable(rows=(row,), protocols=("full", "sampled"), at=10)
    assert table.cells(row)[-2:] == ["1", "lambda 300"]
    two = ComparisonRow(
        method="ials",
        label="iALS",
        samples={
            "full": (
                sample(1, 0.1, 0.1, "alpha 1, lambda 10"),
                sample(2, 0.1, 0.1, "alpha 10, lambda 50"),
            )
        },
    )
    assert two.chosen("full") == "alpha 1, lambda 10/10, lambda 50"


def test_text_and_markdown(table):
    lines = table.to_text().splitlines()
    assert len(lines) == 5
    assert set(lines[1]) == {"-"}
    assert lines[2].startswith("fedmf | own")
    assert lines[4] == "iALS: not installed"
    markdown = table.to_markdown().splitlines()
    assert markdown[2].startswith("| fedmf \\| own | 0.2000 ± 0.1414 |")
    assert markdown[-1] == "- iALS: not installed"


def test_files_hold_every_sample(table):
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [(row["protocol"], row["seed"], float(row["ndcg"])) for row in rows] == [
        ("full", "1", 0.04), ("full", "2", 0.06), ("paper", "1", 0.25), ("paper", "2", 0.25),
    ]  # fmt: skip
    stored = pq.read_table(io.BytesIO(table.to_parquet())).to_pylist()
    assert [row["hr"] for row in stored] == [0.1, 0.3, 0.5, 0.5]
    assert stored[0] | {"hr": 0.1} == stored[0]
    record = json.loads(table.to_json())
    own = record["rows"][0]["results"]
    assert own["full"]["hr"] == {
        "mean": pytest.approx(0.2), "deviation": pytest.approx(0.141421356)
    }  # fmt: skip
    assert [each["chosen"] for each in own["full"]["samples"]] == ["round 9", "round 12"]
    assert record["rows"][1]["results"] == {}


def test_a_difference_stands_beside_its_column(table):
    known = paired_bootstrap(np.zeros(4), np.full(4, 99.0))
    other = ComparisonRow(
        method="ease",
        label="EASE",
        samples={"full": (sample(1, 0.2, 0.03),)},
        differences={"full": known},
    )
    found = replace(table, rows=(table.rows[0], other))
    assert found.headings[1:4] == ["full HR@10", "full NDCG@10", "full difference"]
    assert found.cells(found.rows[0])[3] == "-"
    assert found.cells(other)[3] == "+1.0000 [+1.0000, +1.0000]"
    assert "NDCG@10 of fedmf | own minus that of the row" in found.notes[0]
    results = json.loads(found.to_json())["rows"]
    assert results[0]["results"]["full"]["difference"] is None
    assert results[1]["results"]["full"]["difference"] == {
        "difference": {"estimate": 1.0, "low": 1.0, "high": 1.0},
        "ratio": {"estimate": None, "low": None, "high": None},
        "users": 4,
        "confidence": 0.95,
    }


def test_no_label_is_a_formula_to_a_spreadsheet():
    samples = {"full": [sample(1, 0.5, 0.25, "=1+1")]}
    row = ComparisonRow(method="-m", label="@own", samples=samples)
    found = ComparisonTable(rows=(row,), protocols=("full",), at=10)
    (read,) = csv.DictReader(io.StringIO(found.to_csv()))
    assert (read["method"], read["label"], read["chosen"]) == ("'-m", "'@own", "'=1+1")
    assert pq.read_table(io.BytesIO(found.to_parquet())).to_pylist()[0]["label"] == "@own"


def test_an_empty_table_can_be_saved():
    empty = ComparisonTable(rows=(), protocols=("full",), at=10)
    assert pq.read_table(io.BytesIO(empty.to_parquet())).num_rows == 0
    assert json.loads(empty.to_json())["rows"] == []


def test_validation_stands_beside_test_where_every_seed_has_it(table):
    shown = replace(sample(1, 0.2, 0.03), validation=sample(1, 0.2, 0.07).rates)
    other = ComparisonRow(method="ease", label="EASE", samples={"full": (shown,)})
    found = replace(table, rows=(table.rows[0], other))
    assert found.headings[1:4] == ["full HR@10", "full NDCG@10", "full NDCG@10 on validation"]
    assert "paper NDCG@10 on validation" not in found.headings
    assert found.cells(other)[3] == "0.0700"
    assert found.cells(found.rows[0])[3] == "-"
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [line["validation_ndcg"] for line in lines if line["method"] == "ease"] == ["0.07"]
    partly = ComparisonRow(method="ease", label="EASE", samples={"full": (shown, sample(2, 0, 0))})
    assert partly.on_validation("full") is None
