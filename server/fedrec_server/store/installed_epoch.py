"""The newest key epoch that a state folder holds, read before the run is opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fedrec.wire.chunks import Blob
from fedrec_server.store import reading
from fedrec_server.store.durable_files import damaged, epoch_name
from fedrec_server.store.tables import DATABASE

__all__ = ["installed_bundle"]


def installed_bundle(folder: Path) -> bytes | None:
    """Return the public bundle of the epoch that was installed last, or None where none was.

    The folder is only looked at. What is wrong with a database is said by the process that opens
    it.

    Raises:
        DamagedFile: the bundle is missing or is not what its row says.
    """
    database = folder / DATABASE
    if not database.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as rows:
            rows.row_factory = sqlite3.Row
            record = reading.installed_epoch(rows)
    except sqlite3.DatabaseError:
        return None
    if record is None:
        return None
    name = epoch_name(record.epoch, record.blob)
    path = folder / name
    raw = path.read_bytes() if path.is_file() else b""
    if Blob.of(raw) != record.blob:
        raise damaged(name)
    return raw
