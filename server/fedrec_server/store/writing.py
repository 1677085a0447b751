"""Each change of the state machine as rows."""

from __future__ import annotations

import sqlite3

from fedrec.ids import ClientId, RoundId
from fedrec.wire.fields import StatedRows
from fedrec_server.rounds.changes import (
    AlreadyCounted,
    CellsPaused,
    Change,
    ClientJoined,
    CollectingEnded,
    EpochBegan,
    ReportKept,
    RoundAbandoned,
    RoundLearnt,
    RoundMeasured,
    RoundOpened,
    RoundPublished,
    RunFinished,
    RunResumed,
    StepEnded,
    StepKept,
    StopNoted,
    SumKept,
    UpdateCounted,
    UpdatesRefused,
)
from fedrec_server.store.durable_files import sealed_name, sum_name
from fedrec_server.store.recovered_run import Recovered, note_learnt, write_learnt
from fedrec_server.store.store import Entry
from fedrec_server.store.tables import Row, insert, row_of


def write_change(rows: sqlite3.Connection, change: Change) -> None:
    """Write one change inside the caller's transaction."""
    match change:
        case ClientJoined() | AlreadyCounted():
            pass
        case RoundOpened():
            _open(rows, change)
        case UpdateCounted():
            header = row_of(change.header)
            insert(rows, "contributions", header)
            # Kept for good, whatever becomes of the round.
            insert(rows, "latest", header, verb="INSERT OR REPLACE")
            if change.charged:
                insert(rows, "ledger", {"round": change.header.round, "at": change.at})
        case CollectingEnded():
            _set_phase(rows, change.round, "summing")
            _leave_out(rows, change.round, change.left_out)
        case SumKept():
            _set_phase(rows, change.round, "revealing")
            rows.execute(
                "UPDATE rounds SET sum_length = ?, sum_digest = ? WHERE round = ?",
                (change.total.length, change.total.digest, change.round),
            )
            if change.charged:
                insert(rows, "ledger", {"round": change.round, "at": change.at})
        case UpdatesRefused():
            _leave_out(rows, change.round, change.left_out)
        case CellsPaused():
            known = [(change.epoch, cell, change.round) for cell in change.cells]
            rows.executemany("INSERT INTO paused (epoch, cell, round) VALUES (?, ?, ?)", known)
            _leave_out(rows, change.round, change.left_out)
        case StepKept():
            row: Row = {"round": change.round, "client_id": change.client_id}
            insert(rows, "mask_messages", {**row, "step": change.step, "body": change.body})
        case StepEnded():
            _end_step(rows, change)
        case RoundPublished():
            _publish(rows, change)
        case RoundLearnt(statement=said):
            write_learnt(rows, said, base=change.base_round, at=change.at)
            note_learnt(
                rows,
                Recovered.after(said, last_round=change.last_round, charged=change.charged),
            )
            rows.execute("DELETE FROM ledger")
        case ReportKept(report=report):
            # One of an earlier epoch gives way.
            insert(rows, "reports", row_of(report), verb="REPLACE")
        case RoundMeasured():
            _measure(rows, change)
        case RoundAbandoned():
            _abandon(rows, change)
        case StopNoted():
            _set_meta(rows, "stop_asked", "1")
        case EpochBegan():
            _set_meta(rows, "epoch", str(change.epoch))
        case RunFinished():
            _set_meta(rows, "ended", f"{int(change.failed)}{change.reason}")
        case RunResumed():
            _set_meta(rows, "ended", "")
            _set_meta(rows, "stop_asked", "0")
            _set_meta(rows, "resumed_after", str(change.after_round))


def write_entry(rows: sqlite3.Connection, entry: Entry) -> None:
    """Append one line to the journal."""
    row: Row = {"unix_seconds": entry.unix_seconds, "kind": entry.kind, "round": entry.round}
    insert(rows, "journal", {**row, "fields_json": entry.fields_json})


def _open(rows: sqlite3.Connection, change: RoundOpened) -> None:
    insert(
        rows,
        "rounds",
        {
            "round": change.round,
            "kind": change.kind,
            "base_round": change.base_round,
            "epoch": change.epoch,
            "phase": "collecting",
            "opened_at": change.at,
            "deadline_at": change.deadline_at,
        },
    )
    asked = [(change.round, client_id) for client_id in sorted(change.asked)]
    rows.executemany("INSERT INTO asked (round, client_id) VALUES (?, ?)", asked)


def _end_step(rows: sqlite3.Connection, change: StepEnded) -> None:
    _set_phase(rows, change.round, change.phase)
    rows.execute(
        "UPDATE rounds SET deadline_at = ? WHERE round = ?", (change.deadline_at, change.round)
    )
    if change.charged:
        insert(rows, "ledger", {"round": change.round, "at": change.at})
    gone = [(change.round, client_id) for client_id in sorted(change.left_out)]
    if not change.brought_vectors:
        rows.executemany("DELETE FROM mask_messages WHERE round = ? AND client_id = ?", gone)
        return
    _leave_out(rows, change.round, change.left_out)
    for client_id in sorted(change.left_out):
        row: Row = {"round": change.round, "client_id": client_id, "step": change.step, "body": b""}
        insert(rows, "mask_messages", row)


def _leave_out(rows: sqlite3.Connection, round_id: RoundId, clients: frozenset[ClientId]) -> None:
    gone = [(round_id, client_id) for client_id in sorted(clients)]
    rows.executemany("DELETE FROM contributions WHERE round = ? AND client_id = ?", gone)


def _publish(rows: sqlite3.Connection, change: RoundPublished) -> None:
    said, name = change.statement, sum_name(change.round)
    _set_phase(rows, change.round, "published")
    if said is not None:
        name = sealed_name(change.round, change.blob)
        insert(rows, "statements", row_of(said))
        _set_known(rows, change.round, said.epoch, said.state_tag)
    rows.execute(
        "UPDATE rounds SET blob_name = ?, blob_length = ?, blob_digest = ?, reports_until = ? "
        "WHERE round = ?",
        (name, change.blob.length, change.blob.digest, change.reports_until, change.round),
    )
    if change.rows is not None:
        _set_rows(rows, change.round, change.rows)
    _forget_progress(rows, change.round)


def _measure(rows: sqlite3.Connection, change: RoundMeasured) -> None:
    rows.execute("UPDATE rounds SET reports_until = NULL WHERE round = ?", (change.round,))
    _set_rows(rows, change.round, change.rows)
    if change.agreed is not None:
        _set_known(rows, change.round, change.agreed.epoch, change.agreed.state_tag)


def _abandon(rows: sqlite3.Connection, change: RoundAbandoned) -> None:
    _set_phase(rows, change.round, "abandoned")
    rows.execute("UPDATE rounds SET reason = ? WHERE round = ?", (change.reason, change.round))
    _forget_progress(rows, change.round)
    rows.execute("DELETE FROM contributions WHERE round = ?", (change.round,))


def _forget_progress(rows: sqlite3.Connection, round_id: RoundId) -> None:
    rows.execute("DELETE FROM asked WHERE round = ?", (round_id,))
    rows.execute("DELETE FROM mask_messages WHERE round = ?", (round_id,))


def _set_known(rows: sqlite3.Connection, round_id: RoundId, epoch: int, tag: bytes) -> None:
    query = "UPDATE rounds SET known_epoch = ?, known_tag = ? WHERE round = ?"
    rows.execute(query, (epoch, tag, round_id))


def _set_rows(rows: sqlite3.Connection, round_id: RoundId, found: StatedRows) -> None:
    query = "UPDATE rounds SET n_rows = ?, rows_digest = ? WHERE round = ?"
    rows.execute(query, (found.n_rows, found.digest, round_id))


def _set_phase(rows: sqlite3.Connection, round_id: RoundId, phase: str) -> None:
    rows.execute("UPDATE rounds SET phase = ? WHERE round = ?", (phase, round_id))


def _set_meta(rows: sqlite3.Connection, name: str, value: str) -> None:
    rows.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))
