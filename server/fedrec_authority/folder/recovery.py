"""Write the recovery file for a coordinator that lost its folder.

The revealer records each opened sum before announcing it. So the file can be made while it runs,
and after a new epoch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedrec.errors import KeysError, StorageError
from fedrec.identity.authority import ROSTERS_FOLDER
from fedrec.identity.document import read_public, write_new_public
from fedrec.identity.roster import Roster
from fedrec.wire.messages import RevealStatement
from fedrec.wire.recovery import RecoveryPoint, unpack_headers
from fedrec_authority.folder.authority_folder import MAX_BYTES, AuthorityFolder
from fedrec_authority.folder.folder_changes import changing
from fedrec_authority.folder.opened_sums import OpenedSums

STATE_FOLDER = "state"
_TRIES = 20
"""A running revealer replaces the files that its state names."""


def read_state(folder: AuthorityFolder) -> OpenedSums | None:
    """Return the revealer's state without locking it, or None if it joined no run."""
    path = folder.revealer.folder / STATE_FOLDER
    store = OpenedSums(path, read_only=True) if path.is_dir() else None
    return store if store is not None and store.is_bound else None


def recovery_point(folder: AuthorityFolder) -> RecoveryPoint:
    """Return the state of the run for recovery.

    Raises:
        KeysError: this authority opens no sums, has no epoch, or joined no run.
        StorageError: its state cannot be read.
    """
    keys = folder.newest
    if keys is None or not folder.reveals:
        raise KeysError(
            f"{folder.path} has no key epoch of a federation whose sums it opens.",
            remedy="Set --into to the authority's folder. A restored one needs `fedrec keys "
            "rotate` first.",
        )
    for left in reversed(range(_TRIES)):
        try:
            return _point(
                folder, RecoveryPoint(run="", keys=keys, former=former_rosters(folder, keys.roster))
            )
        except StorageError:
            if not left:
                raise
    raise KeysError("No copy was attempted.")


def write_recovery(folder: AuthorityFolder, path: Path) -> RecoveryPoint:
    """Write the file for `fedrec coordinator recover`.

    Raises:
        KeysError: as for `recovery_point`, or the file exists.
    """
    with changing(folder):
        found = recovery_point(folder)
    write_new_public(path, found.to_bytes())
    return found


def former_rosters(folder: AuthorityFolder, present: Roster) -> tuple[Roster, ...]:
    """Return the last roster of each earlier revealer."""
    found = {} if present.revealer is None else {present.revealer.client_id: present}
    for path in sorted((folder.private / ROSTERS_FOLDER).glob("*.json"), reverse=True):
        raw = read_public(path, max_bytes=MAX_BYTES, remedy="Restore it from a backup.")
        roster = Roster.from_json(raw)
        if roster.revealer is not None:
            found.setdefault(roster.revealer.client_id, roster)
    return tuple(roster for roster in found.values() if roster is not present)


def _point(folder: AuthorityFolder, known: RecoveryPoint) -> RecoveryPoint:
    store = read_state(folder)
    if store is None:
        raise KeysError(
            f"The authority of {folder.path} joined no run, so there is nothing to recover.",
            remedy="Start the coordinator in an empty folder.",
        )
    state, opened = store.state, store.state.opened
    found = replace(known, run=state.pin.run, statement=state.statement, head=state.head)
    if opened is None or _later(state.statement, opened.statement):
        return found
    return replace(
        found,
        statement=opened.statement,
        contributions=unpack_headers(store.read(opened.contributions)),
        sealed=store.read(opened.sealed),
        model=store.read(opened.model),
    )


def _later(one: RevealStatement | None, other: RevealStatement) -> bool:
    return one is not None and one.sequence > other.sequence
