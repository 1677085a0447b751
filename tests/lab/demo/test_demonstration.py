"""A demonstration whose comparison comes out otherwise fails, and leaves everything behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedrec.cli.main import main
from fedrec.protection import PROTECTIONS
from fedrec_lab.demo import demonstration
from fedrec_lab.demo.comparison import Comparison

pytestmark = pytest.mark.slow

compare = demonstration._compare


def run_demo(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Return the exit code, stdout and stderr of a short demonstration."""
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--synthetic", "--protection", "none", "--rounds", "1", "--no-second-act",
              "--runs", str(folder)])  # fmt: skip
    found = capsys.readouterr()
    return ended.value.code, found.out, found.err


def test_the_same_sums_end_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_demo(tmp_path, capsys)
    assert code in (0, None), err
    assert "every round's sums are the same." in out
    assert PROTECTIONS["none"].statement() in out
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "summary.json").read_text())["differences"] == []
    arithmetic = json.loads((folder / "environment.json").read_text())["arithmetic"]
    assert arithmetic["device"] == "cpu"
    for client in (folder / "kits" / "clients").iterdir():
        kept = json.loads((client / "state" / "environment.json").read_text())
        assert kept["arithmetic"] == arithmetic


def test_another_value_ends_with_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*arguments: object) -> Comparison:
        found = compare(*arguments)
        table = found.latest.tensors["item_embedding"].copy()
        table[3, 1] += 2.0**-20
        return replace(found, latest=found.latest.with_tensors(item_embedding=table))

    monkeypatch.setattr(demonstration, "_compare", changed)
    code, out, err = run_demo(tmp_path, capsys)
    assert code == 1
    assert "every round's sums are NOT the same: the latest model, item_embedding: 1 of " in out, (
        err
    )
    assert "error [training]" in err
    assert "the latest model, item_embedding: 1 of " in err
    (folder,) = tmp_path.iterdir()
    assert str(folder) in err
    (line,) = json.loads((folder / "summary.json").read_text())["differences"]
    assert line.startswith("the latest model, item_embedding: 1 of ")
    assert (folder / "report.html").stat().st_size
