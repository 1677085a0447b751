"""Read rows as the values that other parts of the coordinator use."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import Report, RevealStatement, UploadHeader
from fedrec_server.rounds.by_client import Asked, ByClient, Counted
from fedrec_server.rounds.endings import EPOCH_CHANGED
from fedrec_server.rounds.state import (
    Abandonments,
    Ending,
    KnownModel,
    LastCount,
    Reporting,
    Round,
    Rules,
    State,
)
from fedrec_server.store.durable_files import (
    epoch_name,
    own_models_name,
    snapshot_name,
    sum_name,
    update_name,
)
from fedrec_server.store.store import Applicant, Entry, EpochRecord, PublishedRecord, SnapshotRecord
from fedrec_server.store.tables import blob_of, from_row
from fedrec_server.store.writing import Recovered, read_recovered

MOST = 2**63
"""A bound on the absolute value of every metric sum."""
IN_PROGRESS = "phase NOT IN ('published', 'abandoned')"


def load_state(rows: sqlite3.Connection, rules: Rules, roster: frozenset[ClientId]) -> State:
    """Return the run as of the last committed transaction."""
    meta = {row["name"]: row["value"] for row in rows.execute("SELECT * FROM meta")}
    ended = meta["ended"]
    published = number(rows, "SELECT max(round) FROM rounds WHERE phase = 'published'")
    forgiven = max(published, int(meta["resumed_after"]))
    abandoned = "SELECT count(*) FROM rounds WHERE phase = 'abandoned' AND round > ?"
    in_row = f"{abandoned} AND reason != ?"
    before = read_recovered(rows)
    since = 0 if before is None else before.round
    kind = "SELECT count(*) FROM rounds WHERE phase = 'published' AND kind = ? AND round > ?"
    trained = number(rows, kind, "train", since)
    counted = number(rows, kind, "count", since) > 0
    evaluated = number(rows, kind, "evaluate", since) > 0
    charged, last = number(rows, "SELECT count(*) FROM ledger"), last_round(rows)
    if before is not None:
        trained, charged = trained + before.trained, charged + before.charged
        counted, evaluated = counted or before.counted, evaluated or before.evaluated
        last = max(last, before.last_round)
    last_count = _last_count(rows, trained, before) if rules.exact else None
    query = "SELECT cell FROM paused WHERE epoch = ?"
    rules = rules.without([row["cell"] for row in rows.execute(query, (rules.epoch,))])
    return State(
        rules=rules,
        roster=roster,
        last_round=last,
        published=RoundId(published),
        recovered=RoundId(since),
        begins_at=None if before is None else before.last_round,
        # Such rounds must cover exactly the clients of the count. If one of them is lost, the count
        # is repeated.
        counted=counted and (last_count is not None or not rules.exact),
        trained=trained,
        evaluated=evaluated,
        charged=charged,
        known=_known(_published_row(rows, published)),
        reporting=_reporting(rows, published, rules.epoch),
        rows=_stated_rows(rows, published),
        last_count=last_count,
        abandoned=number(rows, abandoned, 0),
        abandonments=Abandonments(
            in_row=number(rows, in_row, forgiven, EPOCH_CHANGED),
            reason=_gave_up(rows, forgiven),
        ),
        current=_current(rows),
        stop_asked=meta["stop_asked"] == "1",
        ending=Ending(reason=ended[1:], failed=ended[0] == "1") if ended else None,
    )


def _gave_up(rows: sqlite3.Connection, after: int) -> str:
    """Return why the last round was abandoned, if that was after the last published one."""
    query = (
        "SELECT reason FROM rounds WHERE phase = 'abandoned' AND round > ? AND reason != ? "
        "ORDER BY round DESC LIMIT 1"
    )
    found = rows.execute(query, (after, EPOCH_CHANGED)).fetchone()
    return "" if found is None else str(found["reason"])


def counted(
    rows: sqlite3.Connection, round_id: RoundId, client_id: ClientId
) -> UploadHeader | None:
    """Return the counted update of a client."""
    query = "SELECT * FROM contributions WHERE round = ? AND client_id = ?"
    row = rows.execute(query, (round_id, client_id)).fetchone()
    return None if row is None else from_row(UploadHeader, row)


def counted_by_client(rows: sqlite3.Connection) -> dict[ClientId, tuple[RoundId, int]]:
    """Return the last published round that counted each client, and its total bytes."""
    query = (
        "SELECT client_id, max(round) AS last, sum(length) AS n_bytes FROM contributions "
        "WHERE round IN (SELECT round FROM rounds WHERE phase = 'published') GROUP BY client_id"
    )
    return {row["client_id"]: (row["last"], row["n_bytes"]) for row in rows.execute(query)}


def latest(rows: sqlite3.Connection) -> dict[ClientId, tuple[RoundId, bytes]]:
    """Return the round and digest of every client's last acknowledged update."""
    found = rows.execute("SELECT * FROM latest")
    return {row["client_id"]: (row["round"], row["digest"]) for row in found}


def latest_header(rows: sqlite3.Connection, client_id: ClientId) -> UploadHeader | None:
    """Return the header of a client's last acknowledged update."""
    row = rows.execute("SELECT * FROM latest WHERE client_id = ?", (client_id,)).fetchone()
    return None if row is None else from_row(UploadHeader, row)


def next_published(rows: sqlite3.Connection, after: RoundId) -> PublishedRecord | None:
    """Return the first round published after `after`."""
    query = "SELECT * FROM rounds WHERE phase = 'published' AND round > ? ORDER BY round LIMIT 1"
    row = rows.execute(query, (after,)).fetchone()
    if row is None:
        return None
    statement = rows.execute("SELECT * FROM statements WHERE round = ?", (row["round"],)).fetchone()
    known, query = _known(row), "SELECT * FROM reports WHERE round = ? ORDER BY client_id"
    reports = [from_row(Report, found) for found in rows.execute(query, (row["round"],))]
    return PublishedRecord(
        round=row["round"],
        kind=row["kind"],
        base_round=row["base_round"],
        epoch=row["epoch"],
        contributions=_contributions(rows, row["round"]),
        statement=None if statement is None else from_row(RevealStatement, statement),
        known=known,
        reports=tuple(report for report in reports if KnownModel.named_by(report) == known),
        name=row["blob_name"] or "",
        blob=Blob(length=row["blob_length"], digest=row["blob_digest"]),
    )


def snapshot(rows: sqlite3.Connection) -> SnapshotRecord | None:
    """Return the snapshot, if there is one."""
    row = rows.execute("SELECT * FROM snapshots").fetchone()
    if row is None:
        return None
    blob = Blob(length=row["length"], digest=row["digest"])
    found = rows.execute("SELECT * FROM attestations ORDER BY client_id")
    reports = tuple(from_row(Report, report) for report in found)
    return SnapshotRecord(round=row["round"], epoch=row["epoch"], blob=blob, reports=reports)


def installed_epoch(rows: sqlite3.Connection) -> EpochRecord | None:
    """Return the newest stored epoch, if there is one."""
    row = rows.execute("SELECT * FROM epochs").fetchone()
    if row is None:
        return None
    blob = Blob(length=row["length"], digest=row["digest"])
    return EpochRecord(epoch=row["epoch"], blob=blob)


def applicants(rows: sqlite3.Connection) -> list[Applicant]:
    """Return all applicants."""
    query = "SELECT * FROM applicants ORDER BY client_id"
    return [
        Applicant(
            invitation=row["invitation"],
            client_id=row["client_id"],
            application=row["application"],
        )
        for row in rows.execute(query)
    ]


def entries(rows: sqlite3.Connection, after: int, limit: int) -> list[Entry]:
    """Return journal entries in order.

    Raises:
        ValueError: an entry is damaged.
    """
    query = "SELECT * FROM journal WHERE sequence > ? ORDER BY sequence LIMIT ?"
    return [
        Entry(
            unix_seconds=row["unix_seconds"],
            kind=row["kind"],
            round=row["round"],
            fields_json=_checked_fields(row),
            sequence=row["sequence"],
        )
        for row in rows.execute(query, (after, limit))
    ]


def _checked_fields(row: sqlite3.Row) -> str:
    """Return an entry's fields, after checking those that readers of the journal need."""
    text: str = row["fields_json"]
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        metrics = fields.get("metrics", [])
        if isinstance(metrics, list) and all(
            type(one) is int and -MOST <= one < MOST for one in metrics
        ):
            return text
    raise ValueError(f"line {row['sequence']} of its journal cannot be read")


def commits(rows: sqlite3.Connection) -> int:
    """Return the number of transactions."""
    return int(meta_value(rows, "commits"))


def meta_value(rows: sqlite3.Connection, name: str) -> str:
    """Return a value that belongs to the whole run."""
    query = "SELECT value FROM meta WHERE name = ?"
    return str(rows.execute(query, (name,)).fetchone()[0])


def last_round(rows: sqlite3.Connection) -> RoundId:
    """Return the last round number that was used."""
    return RoundId(number(rows, "SELECT max(round) FROM rounds"))


def kept_files(rows: sqlite3.Connection) -> Iterator[tuple[str, Blob]]:
    """Yield the name, expected length and digest of each file that outlives its round."""
    query = "SELECT * FROM rounds WHERE phase = 'published' AND blob_name IS NOT NULL"
    for row in rows.execute(query):
        yield row["blob_name"], Blob(length=row["blob_length"], digest=row["blob_digest"])
    stored, installed = snapshot(rows), installed_epoch(rows)
    if stored is not None:
        yield snapshot_name(stored.round, stored.blob), stored.blob
    if installed is not None:
        yield epoch_name(installed.epoch, installed.blob), installed.blob


def sums_before(rows: sqlite3.Connection, n_kept: int) -> tuple[RoundId, list[str]]:
    """Return the newest round whose sum may be deleted, and the files of all sums up to it."""
    query = "SELECT round FROM rounds WHERE phase = 'published' ORDER BY round DESC LIMIT ?, 1"
    last = RoundId(number(rows, query, n_kept))
    query = "SELECT blob_name FROM rounds WHERE blob_name IS NOT NULL AND round <= ?"
    return last, [row["blob_name"] for row in rows.execute(query, (last,))]


def files(rows: sqlite3.Connection) -> Iterator[tuple[str, Blob]]:
    """Yield the name, expected length and digest of each file that a copy of the rows needs."""
    yield from kept_files(rows)
    round_ = _current(rows)
    if round_ is None:
        return
    for client_id, header in round_.accepted.items():
        yield update_name(round_.number, client_id), header.blob
    if round_.total is not None:
        yield sum_name(round_.number), round_.total


def named_files(rows: sqlite3.Connection) -> tuple[frozenset[str], RoundId | None]:
    """Return the files that rows name, and the round whose partial uploads are kept.

    Of clients' own models, it is the first part of their names (see `own_models_name`).
    """
    names = frozenset({*(name for name, _ in files(rows)), *own_models(rows)})
    round_ = _current(rows)
    if round_ is None or round_.phase in ("summing", "revealing"):
        return names, None
    return names, round_.number


def own_models(rows: sqlite3.Connection) -> Iterator[str]:
    """Yield the first parts of the names of the own models that clients may still fetch."""
    for client_id, (last, _) in counted_by_client(rows).items():
        yield own_models_name(last, client_id)


def _current(rows: sqlite3.Connection) -> Round | None:
    row = rows.execute(f"SELECT * FROM rounds WHERE {IN_PROGRESS}").fetchone()
    if row is None:
        return None
    round_id = RoundId(row["round"])
    asked = rows.execute("SELECT client_id FROM asked WHERE round = ?", (round_id,))
    accepted = {header.client_id: header for header in _contributions(rows, round_id)}
    messages = _messages(rows, round_id)
    return Round(
        number=round_id,
        kind=row["kind"],
        base_round=row["base_round"],
        epoch=row["epoch"],
        phase=row["phase"],
        opened_at=row["opened_at"],
        deadline_at=row["deadline_at"],
        asked=Asked(
            {client["client_id"] for client in asked}
            | set(accepted)
            | {client_id for of_step in messages.values() for client_id in of_step}
        ),
        accepted=Counted(accepted),
        total=blob_of(row["sum_length"], row["sum_digest"]),
        messages={step: ByClient(of_step) for step, of_step in messages.items()},
    )


def _messages(rows: sqlite3.Connection, round_id: RoundId) -> dict[str, dict[ClientId, bytes]]:
    found: dict[str, dict[ClientId, bytes]] = {}
    query = "SELECT * FROM mask_messages WHERE round = ? ORDER BY client_id"
    for row in rows.execute(query, (round_id,)):
        found.setdefault(row["step"], {})[row["client_id"]] = row["body"]
    return found


def _contributions(rows: sqlite3.Connection, round_id: RoundId) -> tuple[UploadHeader, ...]:
    query = "SELECT * FROM contributions WHERE round = ? ORDER BY client_id"
    return tuple(from_row(UploadHeader, row) for row in rows.execute(query, (round_id,)))


def _published_row(rows: sqlite3.Connection, published: int) -> sqlite3.Row | None:
    found: sqlite3.Row | None = rows.execute(
        "SELECT * FROM rounds WHERE round = ?", (published,)
    ).fetchone()
    return found


def _known(row: sqlite3.Row | None) -> KnownModel | None:
    """Return the known facts about the model after a published round, or None."""
    if row is None or row["known_epoch"] is None:
        return None
    return KnownModel(epoch=row["known_epoch"], digest=row["known_tag"])


def _reporting(rows: sqlite3.Connection, published: int, epoch: int) -> Reporting | None:
    """Return which reports on the last published round are still expected."""
    row = _published_row(rows, published)
    if row is None or row["reports_until"] is None:
        return None
    query = "SELECT * FROM reports WHERE round = ? AND epoch = ? ORDER BY client_id"
    reports = (from_row(Report, found) for found in rows.execute(query, (published, epoch)))
    return Reporting(
        round=row["round"],
        kind=row["kind"],
        until=row["reports_until"],
        reports={report.client_id: report for report in reports},
    )


def _stated_rows(rows: sqlite3.Connection, published: int) -> StatedRows | None:
    """Return the item rows that vectors cover since the last published round."""
    row = _published_row(rows, published)
    if row is None or row["n_rows"] is None:
        return None
    return StatedRows(n_rows=row["n_rows"], digest=row["rows_digest"])


def _last_count(
    rows: sqlite3.Connection, trained: int, before: Recovered | None
) -> LastCount | None:
    # Between an earlier round and a learnt one, other clients may have been counted.
    since = 0 if before is None else before.round
    query = (
        "SELECT max(round) FROM rounds WHERE phase = 'published' AND kind = 'count' AND round >= ?"
    )
    found = _contributions(rows, RoundId(number(rows, query, since)))
    if not found and before is not None:
        # Training rounds cover exactly the clients that the count named.
        found = _contributions(rows, before.round)
    clients = frozenset(header.client_id for header in found)
    return LastCount(clients=clients, trained=trained) if clients else None


def number(rows: sqlite3.Connection, query: str, *values: str | int) -> int:
    """Return the number that a query selects, or 0 if it selects no row."""
    row: Sequence[int | None] | None = rows.execute(query, values).fetchone()
    return (row and row[0]) or 0
