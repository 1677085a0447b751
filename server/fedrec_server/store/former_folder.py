"""What can be read of a state folder that is about to be set aside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedrec.ids import RoundId
from fedrec.wire.messages import UploadHeader
from fedrec_server.store import reading
from fedrec_server.store.recovered_run import read_recovered
from fedrec_server.store.tables import (
    DATABASE,
    SCHEMA_VERSION,
    UNCHECKED_VERSION,
    from_row,
    prepare,
)

__all__ = ["FormerFolder", "read_former_folder"]

NO_ROUND = RoundId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerFolder:
    """What can be read of it.

    Attributes:
        charged: noisy sums that it counted.
        latest: headers of members' last updates.
    """

    run: str = ""
    published: RoundId = NO_ROUND
    last_round: RoundId = NO_ROUND
    charged: int = 0
    latest: tuple[UploadHeader, ...] = ()


def read_former_folder(state: Path) -> FormerFolder:
    """Return what the folder knows that is there; nothing where it cannot be read."""
    if not (state / DATABASE).is_file():
        return FormerFolder()
    uri = f"{(state / DATABASE).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as rows:
            prepare(rows)
            version = int(rows.execute("PRAGMA user_version").fetchone()[0])
            if version not in (UNCHECKED_VERSION, SCHEMA_VERSION):
                return FormerFolder()
            return _read(rows)
    except (sqlite3.DatabaseError, ArithmeticError, LookupError, TypeError, ValueError):
        return FormerFolder()


def _read(rows: sqlite3.Connection) -> FormerFolder:
    before = read_recovered(rows)
    run = reading.meta_value(rows, "run")
    query = "SELECT coalesce(max(round), 0) FROM rounds WHERE phase = 'published'"
    published = RoundId(rows.execute(query).fetchone()[0])
    charged = int(rows.execute("SELECT count(*) FROM ledger").fetchone()[0])
    last = reading.last_round(rows)
    if before is not None:
        last, charged = max(last, before.last_round), charged + before.charged
    return FormerFolder(
        run=run,
        published=published,
        last_round=last,
        charged=charged,
        latest=tuple(from_row(UploadHeader, row) for row in rows.execute("SELECT * FROM latest")),
    )
