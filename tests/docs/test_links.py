"""Relative links lead somewhere, with anchors. Rows of tables and items of lists are whole."""

import re

import pytest
from docs.pages import all_pages, anchors, links, name_of

_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`|\\\|", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_relative_links_resolve(page):
    targets = links(page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not leads(page, target)] == []


def leads(page, target):
    """Tell whether there is a file, and the anchor in it if one is named."""
    path, _, anchor = target.partition("#")
    other = (page.parent / path).resolve() if path else page
    return other.exists() and (not anchor or anchor in anchors(other.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_rows_and_items_are_whole(page):
    plain = _CODE.sub("code", page.read_text(encoding="utf-8"))
    assert " -\n" not in plain
    for table in plain.split("\n\n"):
        lines = table.strip().splitlines()
        if any(line.startswith("|") for line in lines):
            assert {line.count("|") for line in lines} == {lines[0].count("|")}, table


def test_every_page_is_reachable_from_the_index():
    index = next(page for page in all_pages() if name_of(page) == "docs/README.md")
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for target in links(index.read_text(encoding="utf-8"))
    }
    pages = {page for page in all_pages() if name_of(page).startswith("docs/")}
    assert pages - linked == {index}
