"""The pages of the documentation, taken apart far enough to check them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A block may be the first thing of a numbered item.
_FENCE = re.compile(r"^( *(?:\d+\. )?)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(^|\s+)#(\s.*)?$")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What a reader types at once: a line of a shell's block, or a block of another language.

    Attributes:
        language: the block's.
        line: its first line's number in the page.
        text: without what a page says about it: prompts and comments.
    """

    language: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page, its indentation removed; `line` is that of its first line."""

    language: str
    line: int
    body: str

    @property
    def typed(self) -> list[Typed]:
        """What is typed, in order."""
        if self.language not in ("sh", "console"):
            return [Typed(language=self.language, line=self.line, text=self.body)]
        found, begun, first = [], "", self.line
        for line, text in enumerate(self.body.splitlines(), self.line):
            text = _COMMENT.sub("", text.removeprefix("$ ")).strip()
            first = first if begun else line
            begun += text
            if begun.endswith("\\"):
                begun = begun[:-1]
            elif begun:
                found.append(Typed(language=self.language, line=first, text=begun))
                begun = ""
        return found


def numbered_blocks(text):
    """Return all fenced blocks of a page with their lines."""
    found = []
    for match in _FENCE.finditer(text):
        indent, language, body = match.groups()
        body = re.sub(rf"^ {{0,{len(indent)}}}", "", body, flags=re.MULTILINE)
        line = text.count("\n", 0, match.start(3)) + 1
        found.append(Block(language=language, line=line, body=body))
    return found


def blocks(text, *languages):
    """Return the code blocks of some languages, their indentation removed."""
    return [block.body for block in numbered_blocks(text) if block.language in languages]


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
