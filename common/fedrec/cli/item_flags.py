"""Flags that say which items may be recommended: ids as they are typed, or files of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedrec.data.catalogue import Catalogue

__all__ = ["CandidateItems", "ExcludedItems", "SimilarTo", "items_of_flag"]

CandidateItems = Annotated[
    list[str] | None,
    typer.Option(
        "--candidates",
        metavar="ITEM|@FILE",
        help="Choose from these items alone: an item, or @FILE with one a line; repeat it.",
    ),
]
ExcludedItems = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="ITEM|@FILE",
        help="Never these items: an item, or @FILE with one a line; repeat it.",
    ),
]
SimilarTo = Annotated[
    str, typer.Option(metavar="ITEM", help="The items most like this one, instead of a user's.")
]


def items_of_flag(flag: str, given: Sequence[str], catalogue: Catalogue) -> list[str]:
    """Return the items that a flag gives, each once.

    Args:
        flag: its name, for errors.
        given: an item each, or @FILE.

    Raises:
        DataError: the catalogue has no such item; it names the line of a file.
    """
    from fedrec.errors import DataError

    found: dict[str, None] = {}
    for item, where in _lines(flag, given):
        if item not in catalogue:
            raise DataError(
                f"{where}: the model's catalogue has no such item: {item!r}.",
                remedy="Give items as the catalogue.csv of the model names them.",
            )
        found[item] = None
    return list(found)


def _lines(flag: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield items and where they stand."""
    from fedrec.errors import DataError

    for value in given:
        if not value.startswith("@"):
            yield value, f"{flag} {value}"
            continue
        path = Path(value[1:])
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{flag} {value}: the file cannot be read: {error}.",
                remedy="Give a text file with one item a line; an item itself has no @.",
            ) from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield line.strip(), f"{flag} {value}, line {number}"
