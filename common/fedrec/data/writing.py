"""Writing CSV: interactions, as every part of fedrec reads them; text for people's spreadsheets."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fedrec.data.interactions import Interactions
from fedrec.durable import replacing_text, unwritten
from fedrec.errors import DataError

INTERACTIONS_FILE = "interactions.csv"
CATALOGUE_FILE = "catalogue.csv"
_HEADER = ("user_id", "item_id", "timestamp")
_ELSEWHERE = "Choose another folder."
_NUMBER = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""What OWASP names under "CSV injection", wide forms included."""


def prepare_folder(folder: Path, *names: str, force: bool, private: bool = False) -> None:
    """Make a folder in which none of the named files exists, unless `force`.

    Raises:
        DataError: a file is there.
        SettingsError: the folder cannot be made there.
        StorageError: the disk refuses.
    """
    present = [name for name in names if (folder / name).exists()]
    if present and not force:
        raise DataError(
            f"{folder} has {', '.join(present)} already; nothing was changed.",
            remedy="Choose another folder, or give --force to replace them.",
        )
    try:
        folder.mkdir(mode=0o700 if private else 0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(folder, error, _ELSEWHERE) from None


def no_formula(text: str) -> str:
    """Return text that spreadsheets show as it is: a formula gets a leading apostrophe.

    For files that people open. What fedrec reads again is written without.
    """
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def write_interactions(path: Path, interactions: Interactions, *, private: bool = False) -> None:
    """Write interactions as CSV with a header; a missing time is an empty field.

    Args:
        path: the file; it appears whole or not at all.
        interactions: what to write.
        private: readable by its owner only.

    Raises:
        SettingsError: it cannot be written there.
        StorageError: the disk refuses.
    """
    times = interactions.times().tolist()
    try:
        with replacing_text(path) as file:
            writer = csv.writer(file)
            writer.writerow(_HEADER)
            columns = zip(interactions.user_ids, interactions.item_ids, times, strict=True)
            writer.writerows((user, item, "" if time < 0 else time) for user, item, time in columns)
        if private:
            path.chmod(0o600)
    except OSError as error:
        raise unwritten(path, error, _ELSEWHERE) from None
