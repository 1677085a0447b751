"""What all of a client's users are recommended, as one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Settings
from fedrec.data.writing import no_formula
from fedrec.durable import replacing, unwritten
from fedrec.errors import DataError, SettingsError
from fedrec.extras import require
from fedrec.ids import RoundId
from fedrec.recommender import Recommender
from fedrec_client.recommending.own_recommender import own_recommender
from fedrec_client.recommending.recommendation import Wanted
from fedrec_client.state.held_model import Which

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ExportedTable", "export_recommendations"]

_USERS_AT_ONCE = 1024
_COLUMNS = ("user_id", "rank", "item_id", "title", "score", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """What was written, and where."""

    file: Path
    version: RoundId
    n_users: int
    n_rows: int


def export_recommendations(
    settings: Settings,
    file: Path,
    wanted: Wanted,
    *,
    which: Which = "best",
    force: bool = False,
) -> ExportedTable:
    """Write the best items of all of this client's users, readable by their owner only.

    Works beside a running client and without the coordinator. Scores are those of
    `Recommender.recommend`, bit for bit in Parquet.

    Args:
        file: its ending says in which form: .parquet or .csv.
        wanted: which items, and how many for each user.
        which: the model that measured best on validation, or the latest one.
        force: replace a file that is there.

    Raises:
        StorageError: the state folder holds no model, or the file cannot be written.
        DataError: there is a file already, or an unknown item.
        SettingsError: another ending.
    """
    form = file.suffix.lower()
    if form not in (".parquet", ".csv"):
        raise SettingsError(
            f"--to {file}: the ending says in which form, and is {form or 'missing'!r}.",
            remedy="Give FILE.parquet or FILE.csv.",
        )
    if file.exists() and not force:
        raise DataError(
            f"{file} is there already; nothing was changed.",
            remedy="Choose another file, or give --force to replace it.",
        )
    if form == ".parquet":
        require("pyarrow")
    own = own_recommender(settings, which)
    parts = _Parts(own, wanted)
    try:
        with replacing(file, private=True) as opened:
            (_write_parquet if form == ".parquet" else _write_csv)(opened, parts)
    except OSError as error:
        raise unwritten(file, error, "Check that the folder exists and is writable.") from error
    return ExportedTable(
        file=file, version=own.round, n_users=len(own.user_ids), n_rows=parts.n_rows
    )


class _Parts:
    """The table in parts of some users each, as columns.

    Attributes:
        n_rows: rows that were taken so far.
    """

    def __init__(self, own: Recommender, wanted: Wanted) -> None:
        self.own = own
        self._wanted = wanted
        self._filters = wanted.filters(own.catalogue)
        self.n_rows = 0

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        candidates, block = self._filters
        users = np.array(self.own.user_ids, dtype=np.object_)
        for begin in range(0, len(users), _USERS_AT_ONCE):
            some = users[begin : begin + _USERS_AT_ONCE]
            ids, scores = self.own.recommend(
                some.tolist(),
                self._wanted.n,
                exclude_seen=self._wanted.exclude_seen,
                candidates=candidates,
                block=block,
            )
            filled = scores > -np.inf
            ranks = np.broadcast_to(np.arange(1, 1 + scores.shape[1], dtype=np.int32), ids.shape)
            self.n_rows += int(filled.sum())
            yield {
                "user_index": np.repeat(np.arange(len(some)), filled.sum(1)) + begin,
                "rank": ranks[filled],
                "item_row": self.own.catalogue.rows_of(ids[filled].tolist()),
                "score": scores[filled],
            }


def _write_parquet(file: Any, parts: _Parts) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    own = parts.own
    users, items = _texts(own.user_ids), _texts(own.catalogue.item_ids)
    titles = _texts([own.catalogue.title_of(item) for item in own.catalogue.item_ids])
    kinds = (pa.string(), pa.int32(), pa.string(), pa.string(), pa.float32(), pa.int64())
    schema = pa.schema(
        list(zip(_COLUMNS, kinds, strict=True)),
        metadata={"fedrec.version": str(own.round), "fedrec.table": "recommendations 1"},
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            item_rows = _numbers(part["item_row"])
            columns = [
                users.take(_numbers(part["user_index"])),
                _numbers(part["rank"]),
                items.take(item_rows),
                titles.take(item_rows),
                _numbers(part["score"]),
                _numbers(np.full(len(part["rank"]), own.round, dtype=np.int64)),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


# `pyarrow.array` looks whether it was given something of pandas, and imports that where it is
# installed: a tenth of the whole command.
def _numbers(values: NDArray[Any]) -> pyarrow.Array:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def _texts(values: Sequence[str]) -> pyarrow.Array:
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers).cast(pa.string())


def _write_csv(file: Any, parts: _Parts) -> None:
    own = parts.own
    ids, users = own.catalogue.item_ids, [no_formula(user) for user in own.user_ids]
    items = [(no_formula(item), no_formula(own.catalogue.title_of(item))) for item in ids]
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for part in parts:
        rows = zip(*(part[name].tolist() for name in part), strict=True)
        writer.writerows(
            (users[user], rank, *items[row], score, own.round) for user, rank, row, score in rows
        )
    # The caller closes the file.
    text.detach()
