"""A demonstration whose comparison comes out otherwise fails, and leaves everything behind.

One that ends well is `tests/e2e/test_demo.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedrec.cli.main import main
from fedrec_lab.demo import demonstration
from fedrec_lab.demo.further_runs import UnencryptedRun

pytestmark = pytest.mark.long

compare = demonstration._compare


def test_another_value_ends_with_an_error_that_names_it(tmp_path, capsys, monkeypatch):
    def changed(*arguments: object) -> UnencryptedRun:
        found = compare(*arguments)
        table = found.latest.tensors["item_embedding"].copy()
        table[3, 1] += 2.0**-20
        return replace(found, latest=found.latest.with_tensors(item_embedding=table))

    monkeypatch.setattr(demonstration, "_compare", changed)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--synthetic", "--protection", "none", "--rounds", "1", "--no-second-act",
              "--runs", str(tmp_path)])  # fmt: skip
    seen = capsys.readouterr()
    assert ended.value.code == 1
    sentence = "every round's sums are NOT the same: the latest model, item_embedding: 1 of "
    assert sentence in seen.out, seen.err
    # Nothing is wrapped where programs read.
    assert any(line.endswith("Participants and times.") for line in seen.out.splitlines())
    assert "error [training]" in seen.err
    assert "the latest model, item_embedding: 1 of " in seen.err
    (folder,) = tmp_path.iterdir()
    assert str(folder) in seen.err
    (line,) = json.loads((folder / "summary.json").read_text())["differences"]
    assert line.startswith("the latest model, item_embedding: 1 of ")
    assert (folder / "report.html").stat().st_size
