"""Write CSV: interactions for fedrec itself, and text that is safe in spreadsheets."""

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
"""The characters that OWASP lists under "CSV injection", including wide forms."""


def prepare_folder(folder: Path, *names: str, force: bool, private: bool = False) -> None:
    """Make a folder, and refuse if it has one of the named files, unless `force` is set.

    Raises:
        DataError: any of the files exists.
        SettingsError: the folder cannot be created.
        StorageError: the disk is full or failed.
    """
    present = [name for name in names if (folder / name).exists()]
    if present and not force:
        raise DataError(
            f"{folder} already has {', '.join(present)}. Nothing was changed.",
            remedy="Choose another folder, or give --force to replace them.",
        )
    try:
        folder.mkdir(mode=0o700 if private else 0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(folder, error, _ELSEWHERE) from None


def no_formula(text: str) -> str:
    """Return text that spreadsheets show literally, with an apostrophe before a formula.

    Use it for files that people open. Files that fedrec reads again are not escaped.
    """
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def write_interactions(path: Path, interactions: Interactions, *, private: bool = False) -> None:
    """Write interactions as CSV with a header. A missing time is an empty field.

    Args:
        path: the file, which is written atomically.
        interactions: the rows to write.
        private: whether only the owner may read the file.

    Raises:
        SettingsError: the folder is not writable.
        StorageError: the disk is full or failed.
    """
    times = interactions.times().tolist()
    try:
        with replacing_text(path, private=private) as file:
            writer = csv.writer(file)
            writer.writerow(_HEADER)
            columns = zip(interactions.user_ids, interactions.item_ids, times, strict=True)
            writer.writerows((user, item, "" if time < 0 else time) for user, item, time in columns)
    except OSError as error:
        raise unwritten(path, error, _ELSEWHERE) from None
