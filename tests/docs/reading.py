"""A page is read from its first line to its last."""

from __future__ import annotations

import re
from pathlib import Path

from docs.accounts import LANGUAGES, elsewhere, weaker_of
from docs.pages import ROOT, numbered_blocks
from docs.reader import Reader, begins
from docs.scripts import SCRIPTS


def read(page: str, folder: Path) -> None:
    """Type what a page says in a new folder, and press Ctrl-C at its end."""
    here = folder / "reader"
    here.mkdir()
    reader = Reader(here, page, SCRIPTS[page])
    try:
        _read(page, reader)
    finally:
        reader.close()


def _read(page: str, reader: Reader) -> None:
    script = SCRIPTS[page]
    script.given(reader)
    waiting: tuple[str, str] | None = None
    for block in numbered_blocks((ROOT / page).read_text(encoding="utf-8")):
        if block.language == "text" and waiting is not None:
            output, which = waiting
            assert lacks(output, block.body, which) == [], f"{page}:{block.line}\n{output}"
        if block.language not in LANGUAGES:
            continue
        for typed in block.typed:
            if weaker_of(page, typed) or elsewhere(page, typed):
                continue
            seen = reader.types(typed)
            shows = (which for begin, which in script.shows.items() if begins(typed, begin))
            waiting = next(((seen, which) for which in shows), None)
    reader.ends()


def lacks(output: str, promised: str, which: str) -> list[str]:
    """Return the promised lines that an output has not, whatever their spaces."""
    has = {" ".join(line.split()) for line in output.splitlines()}
    wanted = [line for line in promised.splitlines() if line.strip() and re.match(which, line)]
    assert wanted, f"no line of the page's block begins with {which}"
    return [line for line in wanted if " ".join(line.split()) not in has]
