"""The catalogue: it maps each item to its row in every item table of a federation."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data.interactions import Interactions, sorted_ids
from fedrec.durable import replacing_text, unwritten
from fedrec.errors import CatalogueMismatch, DataError
from fedrec.ids import ItemId, digest, id_text
from fedrec.showing import Tabular, html_table

_MAGIC = "fedrec-catalogue"
_MAJOR, _MINOR = 1, 0
_HEADER = ["item_id", "title"]
# Python refuses to read a number of thousands of digits.
_VERSION = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue(Tabular):
    """A public, ordered list of items. The row of an item never changes.

    Attributes:
        item_ids: the item of each row.
        titles: a display name for each row, or empty.
        version: starts at 1 and grows by 1 with each `append`.

    Raises:
        DataError: an id is empty, twice in the list or not encodable, the number of titles differs
            from that of items, or the version is below 1.
    """

    item_ids: tuple[ItemId, ...]
    titles: tuple[str, ...]
    version: int = 1
    _rows: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the catalogue as a whole and index its ids."""
        rows: dict[str, int] = {item: row for row, item in enumerate(self.item_ids)}
        problems = []
        if len(rows) < len(self.item_ids):
            twice = [item for row, item in enumerate(self.item_ids) if rows[item] != row]
            problems.append(f"these items are listed twice: {_quoted(twice)}")
        if "" in rows:
            problems.append(f"the item of row {rows['']} has an empty id")
        if len(self.titles) != len(self.item_ids):
            problems.append(f"there are {len(self.titles)} titles for {len(self.item_ids)} items")
        if self.version < 1:
            problems.append(f"the version is {self.version}, expected 1 or more")
        try:
            "".join((*self.item_ids, *self.titles)).encode()
        except UnicodeEncodeError as error:
            problems.append(f"an id or a title is not Unicode text ({error.reason})")
        if problems:
            raise DataError(
                f"The catalogue is invalid: {'; '.join(problems)}.",
                remedy="Set one non-empty id and one title, which may be empty, for every item.",
            )
        object.__setattr__(self, "_rows", rows)

    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Return item_id and title."""
        return {"item_id": self.item_ids, "title": self.titles}

    def __repr__(self) -> str:
        titles = "with titles" if any(self.titles) else "no titles"
        return f"Catalogue({len(self):,} items, version {self.version}, {titles})"

    def _repr_html_(self) -> str:
        columns = (self.item_ids, *([self.titles] if any(self.titles) else []))
        names = ("item", "title")[: len(columns)]
        return html_table(names, zip(*columns, strict=True), caption=repr(self), most=10)

    @classmethod
    def of(
        cls, item_ids: Iterable[str], titles: Iterable[str] | None = None, *, version: int = 1
    ) -> Catalogue:
        """Build a catalogue in the given order. Without titles every title is empty."""
        ids = tuple(map(ItemId, item_ids))
        return cls(
            item_ids=ids,
            titles=("",) * len(ids) if titles is None else tuple(titles),
            version=version,
        )

    @classmethod
    def from_interactions(cls, interactions: Interactions) -> Catalogue:
        """List the distinct items of some interactions in canonical order."""
        return cls.of(sorted_ids(interactions.item_ids.tolist()))

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.item_ids)

    def __contains__(self, item_id: object) -> bool:
        """Return whether an item has a row."""
        return id_text(item_id) in self._rows

    @property
    def n_items(self) -> int:
        """The number of items, which is the number of rows of an item table."""
        return len(self.item_ids)

    def append(self, item_ids: Iterable[str], titles: Iterable[str] | None = None) -> Catalogue:
        """Return the next version, with new rows at the end.

        Raises:
            DataError: an item is already in the catalogue or appears twice among the new ones.
        """
        new = Catalogue.of(item_ids, titles)
        known = [item for item in new.item_ids if item in self._rows]
        if known:
            raise DataError(
                f"These items are already in the catalogue: {_quoted(known)}.",
                remedy="Append new items only.",
            )
        return Catalogue(
            item_ids=self.item_ids + new.item_ids,
            titles=self.titles + new.titles,
            version=self.version + 1,
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 of the items in the order of their rows, as 64 hexadecimal digits.

        Titles and the version are not covered: a corrected title must not split a federation.
        Catalogues with the same rows are equal, however they were made.
        """
        return digest("fedrec catalogue", *self.item_ids).hex()

    def rows_of(self, item_ids: Iterable[str | int]) -> NDArray[np.int64]:
        """Return the row of each item, shape (n,).

        Raises:
            CatalogueMismatch: some items are not in the catalogue. The message names the first of
                them.
        """
        wanted = list(item_ids)
        try:
            # Integers are no keys.
            find: Callable[[Any], int] = self._rows.__getitem__
            return np.fromiter(map(find, wanted), np.int64, count=len(wanted))
        except KeyError:
            texts = [str(id_text(item)) for item in wanted]
            unknown = sorted_ids(item for item in texts if item not in self._rows)
            if not unknown:
                return self.rows_of(texts)
        raise CatalogueMismatch(
            f"{len(unknown)} items are not among the {len(self)} of catalogue version "
            f"{self.version}: {_quoted(unknown)}.",
            remedy="Fetch the federation's catalogue, or leave these items out of the data.",
        )

    def check_has(self, interactions: Interactions, path: Path) -> None:
        """Check that the catalogue in a file has all items of some data.

        Raises:
            CatalogueMismatch: some items are not in the catalogue.
        """
        try:
            self.rows_of(dict.fromkeys(interactions.item_ids.tolist()))
        except CatalogueMismatch as error:
            raise CatalogueMismatch(
                f"{path} is not the catalogue of these data. {error.message}",
                remedy="Make their catalogue with `fedrec data catalogue`, or move the data into a "
                "folder without one. A settings file that names it needs the change, too.",
            ) from None

    def ids_of(self, rows: Iterable[int] | NDArray[np.int64]) -> list[ItemId]:
        """Return the item of each row.

        Raises:
            CatalogueMismatch: a row is outside the catalogue.
        """
        chosen = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows), dtype=np.int64)
        outside = chosen[(chosen < 0) | (chosen >= len(self))]
        if len(outside):
            raise CatalogueMismatch(
                f"Row {outside[0]} is outside the catalogue, which has {len(self)} rows.",
                remedy="Fetch the federation's catalogue.",
            )
        return [self.item_ids[row] for row in chosen.tolist()]

    def title_of(self, item_id: str | int) -> str:
        """Return an item's title, or its id where the title is empty."""
        row = self._rows.get(str(item_id))
        if row is None:
            row = int(self.rows_of([item_id])[0])
        return self.titles[row] or str(item_id)

    def save(self, path: str | Path) -> None:
        """Write the catalogue as CSV, atomically replacing a file of that name.

        The first record is the format's name and version, the catalogue's version and its
        fingerprint. The second is the header.

        Raises:
            SettingsError: the folder is not writable. An old file stays intact.
            StorageError: the disk is full or failed. An old file stays intact.
        """
        preamble = [_MAGIC, f"{_MAJOR}.{_MINOR}", self.version, self.fingerprint()]
        try:
            with replacing_text(Path(path)) as file:
                writer = csv.writer(file)
                writer.writerow(preamble)
                writer.writerow(_HEADER)
                writer.writerows(zip(self.item_ids, self.titles, strict=True))
        except OSError as error:
            raise unwritten(Path(path), error) from error

    @classmethod
    def load(cls, path: str | Path) -> Catalogue:
        """Read a file that `save` wrote.

        Raises:
            DataError: the file is missing, not a catalogue, of another major format, or its items
                do not match its fingerprint.
        """
        try:
            with Path(path).open(encoding="utf-8-sig", newline="") as file:
                records = list(csv.reader(file))
        except UnicodeDecodeError:
            raise DataError(
                f"The catalogue {path} is not UTF-8 text.",
                remedy="Name the catalogue file, or convert it to UTF-8.",
            ) from None
        except (OSError, csv.Error) as error:
            raise DataError(
                f"The catalogue {path} cannot be read: {error}.", remedy="Check the path."
            ) from error
        version, fingerprint = _parse_preamble(path, records)
        wrong = [number for number, row in enumerate(records[2:], start=3) if len(row) != 2]
        if wrong:
            raise DataError(
                f"The catalogue {path} has records that are not an id and a title, first record "
                f"{wrong[0]}.",
                remedy="Restore the file. A title with a comma needs quotation marks.",
            )
        found = cls.of((row[0] for row in records[2:]), (row[1] for row in records[2:]))
        if found.fingerprint() != fingerprint:
            raise DataError(
                f"The items of {path} have the fingerprint {found.fingerprint()}, but its first "
                f"line has {fingerprint}.",
                remedy="Restore the file. Titles may be edited, but not items or their order.",
            )
        return cls(item_ids=found.item_ids, titles=found.titles, version=version)


def _parse_preamble(path: str | Path, records: list[list[str]]) -> tuple[int, str]:
    """Return the catalogue's version and fingerprint from the first two records."""
    preamble = records[0] if records else []
    if len(preamble) != 4 or preamble[0] != _MAGIC:
        raise DataError(
            f"{path} is not a catalogue: its first line is {','.join(preamble)[:80]!r}, expected "
            f"{_MAGIC},{_MAJOR}.{_MINOR},version,fingerprint.",
            remedy="Make one with `fedrec data catalogue INTERACTIONS --out catalogue.csv`.",
        )
    major = preamble[1].partition(".")[0]
    if major != str(_MAJOR):
        raise DataError(
            f"{path} has the catalogue format {preamble[1]}. This fedrec reads {_MAJOR}.x.",
            remedy="Install the fedrec version that wrote it, or export it again with this one.",
        )
    if not _VERSION.fullmatch(preamble[2]) or records[1:2] != [_HEADER]:
        raise DataError(
            f"{path} is damaged: version {preamble[2][:20]!r}, header {records[1:2]}. Expected a "
            f"number and {[_HEADER]}.",
            remedy="Restore the file from a copy.",
        )
    return int(preamble[2]), preamble[3]


def _quoted(ids: list[str] | list[ItemId]) -> str:
    shown = ", ".join(repr(str(id_)) for id_ in ids[:5])
    return shown if len(ids) <= 5 else f"{shown} and {len(ids) - 5} more"
