"""The tables of which-algorithm.md: rows of runs without a result, and what is disclosed."""

from pathlib import Path

from which_algorithm import disclosures, unfinished

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "which-algorithm.md"


def test_the_page_has_what_is_disclosed_now():
    assert "\n".join(disclosures()) in PAGE.read_text(encoding="utf-8")


def test_a_run_that_was_interrupted_has_the_seconds_of_all_rounds(tmp_path):
    spent = tmp_path / "amazon-video" / "cofedrec" / "running-0-1" / "spent"
    spent.parent.mkdir(parents=True)
    spent.write_text("30.0 3 100")
    found = unfinished(tmp_path / "amazon-video", "cofedrec")
    assert "| cofedrec, as on filmtrust | 0 |  | stopped after 3 of 100 rounds |" in found
    assert "all rounds: 1000" in found
    assert "not measured" in unfinished(tmp_path / "ml-1m", "cofedrec")
