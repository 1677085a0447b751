"""The tutorial's algorithm is one short file, and every command of the page works."""

import re

import pytest
from docs.commands import run
from docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "tutorial" / "a-toy-algorithm.md"
MOST_LINES = 40


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


def test_the_algorithm_is_one_file_of_at_most_40_lines(text):
    (program,) = blocks(text, "python")
    assert len(program.splitlines()) <= MOST_LINES
    assert max(map(len, program.splitlines())) <= 100
    note = re.search(r"with (\d+) lines", (ROOT / "docs/how-to/add-an-algorithm.md").read_text())
    assert note and int(note.group(1)) == len(program.splitlines())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_command_of_the_page_works(text, tmp_path):
    """The contract's tests run among them: the page calls the conformance suite."""
    make, install, conformance, train, clean = blocks(text, "sh")
    (program,), (package, settings) = blocks(text, "python"), blocks(text, "toml")
    run(make, tmp_path, tmp_path / "site")
    toy, site = tmp_path / "toy", tmp_path / "site"
    (toy / "taste" / "taste.py").write_text(program)
    (toy / "taste" / "pyproject.toml").write_text(package)
    (toy / "run.toml").write_text(settings)
    assert "Step size." in run(install, toy, site, PIP_NO_INDEX="1")
    assert re.search(r"\b[1-9]\d* passed", run(conformance, ROOT, site))
    trained = run(train, toy, site)
    (promised,) = (body for body in blocks(text, "text") if "popularity" in body)
    model, popularity, untrained = map(ndcg, promised.splitlines()[2:5])
    assert model > popularity > untrained
    rows = [line for line in trained.splitlines() if line[:5] in ("taste", "popul", "untra")]
    assert [ndcg(row) for row in rows[:3]] == pytest.approx(
        [model, popularity, untrained], abs=0.003
    )
    run(clean, toy, site)


def ndcg(row):
    """Return the first NDCG@10 of a row of the table of results."""
    return float(re.findall(r"0\.\d{4}", row)[1])
