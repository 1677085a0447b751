"""The pages of the documentation, taken apart far enough to check them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_INLINE = re.compile(r"`([^`\n]+)`")


def all_pages():
    """Return every page that people read, wherever it lies."""
    top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    return sorted([*top, *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")])


def name_of(page):
    """Return a page's path from the root, for the names of tests."""
    return str(page.relative_to(ROOT))


def blocks(text, *languages):
    """Return the code blocks of some languages, their indentation removed."""
    found = _FENCE.findall(text)
    return [
        re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        for indent, language, body in found
        if language in languages
    ]


def prose(text):
    """Return the text without its code blocks."""
    return _FENCE.sub("", text)


def links(text):
    """Return the targets of all links and images."""
    return _LINK.findall(prose(text))


def inline_code(text):
    """Return what stands between single backticks."""
    return _INLINE.findall(prose(text))


def anchors(text):
    """Return the anchors that a reader of the Markdown can jump to."""
    found = set()
    for heading in _HEADING.findall(prose(text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found
