"""The page's tables are those of the script."""

from pathlib import Path

from scale_on_paper import on_page

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "scale.md"


def test_the_page_has_what_the_script_derives():
    page = PAGE.read_text(encoding="utf-8")
    assert on_page(page) == page
