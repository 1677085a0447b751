"""What a run had done before its coordinator's folder was made anew from the key authority's word.

Rows begin with the round that was published last; what came before it is counted here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedrec.identity.document import Document
from fedrec.identity.public import PublicIdentity
from fedrec.ids import RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import RevealStatement, UploadHeader
from fedrec_server.store.tables import Row, insert, row_of

_META = "recovered"
_FORMER = "former_revealers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What was done up to a round, that round with it.

    Attributes:
        last_round: the last number that anybody heard of.
        charged: noisy sums that anybody may have opened.
    """

    round: RoundId
    last_round: RoundId
    counted: bool
    trained: int
    evaluated: bool
    charged: int

    @classmethod
    def after(cls, said: RevealStatement | None, *, last_round: int, charged: int) -> Recovered:
        """Return what the key authority's word on the last published round means."""
        round_id = RoundId(0) if said is None else said.round
        return cls(
            round=round_id,
            last_round=RoundId(max(round_id, last_round)),
            counted=said is not None,
            trained=0 if said is None else said.trained,
            evaluated=said is not None and said.kind == "evaluate",
            charged=charged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """The rows of a folder that is made anew.

    Attributes:
        contributions: of the last published round; empty where they are unknown.
        latest: members' last updates.
        sealed: the file of the round's sum; None where it is unknown.
        model: the copy of the model after it; None where members have to send one.
        epoch: the present key epoch.
        former: revealers before the present one.
        paused: cells that are paused in the present key epoch, by the round in which that was said.
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
    """Write what is known of a run into new tables."""
    meta = {"run": found.run, _META: _written(found.before)}
    for name, value in meta.items():
        rows.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))
    for identity in found.former:
        note_former(rows, identity)
    for cell, round_id in found.paused.items():
        insert(rows, "paused", {"epoch": found.epoch, "cell": cell, "round": round_id})
    for header in (*found.contributions, *found.latest):
        keep_latest(rows, header)
    said = found.statement
    if said is None:
        return
    base = found.contributions[0].base_round if found.contributions else RoundId(said.round - 1)
    write_learnt(rows, said, base=base, sealed=found.sealed, at=found.at)
    for header in found.contributions:
        insert(rows, "contributions", row_of(header))
    if found.model is not None:
        row: Row = {"round": said.round, "epoch": said.epoch, "length": found.model.length}
        insert(rows, "snapshots", {**row, "digest": found.model.digest})


def write_learnt(
    rows: sqlite3.Connection,
    said: RevealStatement,
    *,
    base: RoundId,
    at: float,
    sealed: tuple[str, Blob] | None = None,
) -> None:
    """Write a published round of which the key authority's word is known, and perhaps its sum."""
    name, blob = (None, Blob(length=0, digest=said.published_digest)) if sealed is None else sealed
    row: Row = {
        "round": said.round,
        "kind": said.kind,
        "base_round": base,
        "epoch": said.epoch,
        "phase": "published",
        "opened_at": at,
        "deadline_at": at,
        "n_rows": said.n_rows,
        "rows_digest": said.rows_digest,
        "blob_name": name,
        "blob_length": blob.length,
        "blob_digest": blob.digest,
        "known_epoch": said.epoch,
        "known_tag": said.state_tag,
    }
    insert(rows, "rounds", row)
    insert(rows, "statements", row_of(said))


def note_learnt(rows: sqlite3.Connection, before: Recovered) -> None:
    """Count from a later round on."""
    rows.execute("UPDATE meta SET value = ? WHERE name = ?", (_written(before), _META))


def read_recovered(rows: sqlite3.Connection) -> Recovered | None:
    """Return what was done before the rows begin; None in a folder that was never made anew."""
    found = rows.execute("SELECT * FROM meta WHERE name = ?", (_META,)).fetchone()
    return None if found is None else Recovered(**json.loads(found["value"]))


def keep_latest(rows: sqlite3.Connection, header: UploadHeader) -> None:
    """Keep a member's last update, unless a later one is here."""
    query = "SELECT round FROM latest WHERE client_id = ? AND round >= ?"
    if rows.execute(query, (header.client_id, header.round)).fetchone() is None:
        insert(rows, "latest", row_of(header), verb="INSERT OR REPLACE")


def note_former(rows: sqlite3.Connection, identity: PublicIdentity) -> None:
    """Remember for good that a revealer was replaced."""
    known = [one.fields() for one in former_revealers(rows) if one != identity]
    text = json.dumps([*known, identity.fields()])
    rows.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_FORMER, text))


def former_revealers(rows: sqlite3.Connection) -> tuple[PublicIdentity, ...]:
    """Return the revealers that were replaced."""
    found = rows.execute("SELECT * FROM meta WHERE name = ?", (_FORMER,)).fetchone()
    entries = [] if found is None else json.loads(found["value"])
    return tuple(PublicIdentity.from_fields(Document(entry, _FORMER)) for entry in entries)


def _written(before: Recovered) -> str:
    return json.dumps({name: getattr(before, name) for name in Recovered.__slots__})
