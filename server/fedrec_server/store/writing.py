"""Write each change of the state machine as rows, and the rows of a recovered folder.

A recovered folder begins with the last published round. Earlier rounds are only counted, as the key
authority reports them (`Recovered`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedrec.identity.document import Document
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import RevealStatement, UploadHeader
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
from fedrec_server.store.store import Entry
from fedrec_server.store.tables import Row, insert, row_of

_META = "recovered"
_FORMER = "former_revealers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The progress of a run up to and including a round.

    Attributes:
        last_round: the last round number that any party knows.
        charged: the number of noisy sums that may have been opened.
    """

    round: RoundId
    last_round: RoundId
    counted: bool
    trained: int
    evaluated: bool
    charged: int

    @classmethod
    def after(cls, signed: RevealStatement | None, *, last_round: int, charged: int) -> Recovered:
        """Return the progress implied by the key authority's statement on the last round."""
        round_id = RoundId(0) if signed is None else signed.round
        return cls(
            round=round_id,
            last_round=RoundId(max(round_id, last_round)),
            counted=signed is not None,
            trained=0 if signed is None else signed.trained,
            evaluated=signed is not None and signed.kind == "evaluate",
            charged=charged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """The rows of a recovered folder.

    Attributes:
        contributions: the contributions to the last published round, or empty if unknown.
        latest: the last update of each member.
        sealed: the file of the round's sum, or None if unknown.
        model: the copy of the model after it, or None if members must send one.
        epoch: the current key epoch.
        former: earlier revealers.
        paused: cells that are paused in the current key epoch, by the round of that decision.
    """

    run: str
    before: Recovered
    statement: RevealStatement | None
    contributions: tuple[UploadHeader, ...]
    latest: tuple[UploadHeader, ...]
    sealed: tuple[str, Blob] | None
    model: Blob | None
    former: tuple[PublicIdentity, ...]
    at: float
    epoch: int = 0
    paused: Mapping[int, RoundId] = field(default_factory=dict)


def write_recovered(rows: sqlite3.Connection, found: RecoveredRun) -> None:
    """Write the knowledge of a run into new tables."""
    meta = {"run": found.run, _META: _written(found.before)}
    for name, value in meta.items():
        rows.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))
    for identity in found.former:
        note_former(rows, identity)
    for cell, round_id in found.paused.items():
        insert(rows, "paused", {"epoch": found.epoch, "cell": cell, "round": round_id})
    for header in (*found.contributions, *found.latest):
        keep_latest(rows, header)
    signed = found.statement
    if signed is None:
        return
    base = found.contributions[0].base_round if found.contributions else RoundId(signed.round - 1)
    write_learnt(rows, signed, base=base, sealed=found.sealed, at=found.at)
    for header in found.contributions:
        insert(rows, "contributions", row_of(header))
    if found.model is not None:
        row: Row = {"round": signed.round, "epoch": signed.epoch, "length": found.model.length}
        insert(rows, "snapshots", {**row, "digest": found.model.digest})


def write_learnt(
    rows: sqlite3.Connection,
    signed: RevealStatement,
    *,
    base: RoundId,
    at: float,
    sealed: tuple[str, Blob] | None = None,
) -> None:
    """Write a published round that the key authority confirmed, with its sum if it is known."""
    name, blob = sealed or (None, Blob(length=0, digest=signed.published_digest))
    row: Row = {
        "round": signed.round,
        "kind": signed.kind,
        "base_round": base,
        "epoch": signed.epoch,
        "phase": "published",
        "opened_at": at,
        "deadline_at": at,
        "n_rows": signed.n_rows,
        "rows_digest": signed.rows_digest,
        "blob_name": name,
        "blob_length": blob.length,
        "blob_digest": blob.digest,
        "known_epoch": signed.epoch,
        "known_tag": signed.state_tag,
    }
    insert(rows, "rounds", row)
    insert(rows, "statements", row_of(signed))


def note_learnt(rows: sqlite3.Connection, before: Recovered) -> None:
    """Replace the stored progress before the first row by that of a later round."""
    rows.execute("UPDATE meta SET value = ? WHERE name = ?", (_written(before), _META))


def read_recovered(rows: sqlite3.Connection) -> Recovered | None:
    """Return the progress before the rows begin, or None if the folder was never recovered."""
    found = rows.execute("SELECT * FROM meta WHERE name = ?", (_META,)).fetchone()
    return None if found is None else Recovered(**json.loads(found["value"]))


def keep_latest(rows: sqlite3.Connection, header: UploadHeader) -> None:
    """Store a member's last update, unless a later one is stored."""
    query = "SELECT round FROM latest WHERE client_id = ? AND round >= ?"
    if rows.execute(query, (header.client_id, header.round)).fetchone() is None:
        insert(rows, "latest", row_of(header), verb="INSERT OR REPLACE")


def note_former(rows: sqlite3.Connection, identity: PublicIdentity) -> None:
    """Record permanently that a revealer was replaced."""
    known = [one.fields() for one in former_revealers(rows) if one != identity]
    text = json.dumps([*known, identity.fields()])
    rows.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_FORMER, text))


def former_revealers(rows: sqlite3.Connection) -> tuple[PublicIdentity, ...]:
    """Return the replaced revealers."""
    found = rows.execute("SELECT * FROM meta WHERE name = ?", (_FORMER,)).fetchone()
    entries = [] if found is None else json.loads(found["value"])
    return tuple(PublicIdentity.from_fields(Document(entry, _FORMER)) for entry in entries)


def _written(before: Recovered) -> str:
    return json.dumps({name: getattr(before, name) for name in Recovered.__slots__})


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
            # Kept permanently, whatever the outcome of the round.
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
        case RoundLearnt(statement=signed):
            write_learnt(rows, signed, base=change.base_round, at=change.at)
            note_learnt(
                rows,
                Recovered.after(signed, last_round=change.last_round, charged=change.charged),
            )
            rows.execute("DELETE FROM ledger")
        case ReportKept(report=report):
            # It replaces one from an earlier epoch.
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
    signed, name = change.statement, sum_name(change.round)
    _set_phase(rows, change.round, "published")
    if signed is not None:
        name = sealed_name(change.round, change.blob)
        insert(rows, "statements", row_of(signed))
        _set_known(rows, change.round, signed.epoch, signed.state_tag)
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
