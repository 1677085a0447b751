"""The notebooks run from the first cell to the last, and show what they showed."""

from __future__ import annotations

import json

import pytest
from notebooks import FOLDER, LARGEST_BYTES, executed

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_is_one_for_each_reader():
    assert [path.stem for path in NOTEBOOKS] == ["privacy-engineer", "researcher"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_its_outputs(path):
    assert path.stat().st_size <= LARGEST_BYTES
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert notebook["cells"][0]["source"][0].startswith("# ")
    for cell in notebook["cells"]:
        assert cell["cell_type"] == "markdown" or cell["outputs"] or "import" in cell["source"][0]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_the_same_kinds_of_output(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert kinds(executed(notebook)) == kinds(notebook)
    assert [*tmp_path.iterdir()] == []


def kinds(notebook):
    """Return the forms in which each code cell's outputs are kept."""
    return [
        [sorted(output.get("data", [output.get("name")])) for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
