"""What the page says of disclosure is what `fedrec check` says."""

from pathlib import Path

from which_algorithm import disclosures

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "which-algorithm.md"


def test_the_page_has_what_is_disclosed_now():
    assert "\n".join(disclosures()) in PAGE.read_text(encoding="utf-8")
