"""The newest roster that this client believed, which the next one has to follow from."""

from __future__ import annotations

from pathlib import Path

from fedrec.durable import write_whole
from fedrec.errors import RosterBreaksCells
from fedrec.identity.cell_rules import check
from fedrec.identity.key_files import read_public
from fedrec.identity.roster import MAX_BYTES, Roster
from fedrec.ids import RoundId
from fedrec_client.state.audit import AuditLog

__all__ = ["ROSTER_FILE", "RosterChain", "kept_roster"]

ROSTER_FILE = "roster.json"


def kept_roster(folder: Path) -> Roster | None:
    """Return the newest roster that the client of a state folder believed, if it knows one.

    Raises:
        KeysError: the file is damaged.
    """
    path = folder / ROSTER_FILE
    if not path.exists():
        return None
    remedy = "Restore the client's state folder from a copy."
    return Roster.from_json(read_public(path, max_bytes=MAX_BYTES, remedy=remedy))


class RosterChain:
    """Keeps one federation's newest roster in the state folder.

    It stays when the client goes on with another run: sums over the same data were opened before.
    """

    def __init__(self, folder: Path, audit: AuditLog) -> None:
        self._path = folder / ROSTER_FILE
        self._audit = audit
        self._refused = b""

    def admit(self, roster: Roster, run: str) -> None:
        """Keep a roster that follows from the one kept; an older one changes nothing.

        Raises:
            RosterBreaksCells: it does not follow; it is in the audit, once.
            KeysError: the file is damaged.
        """
        kept = self._kept_of(roster)
        # A client that keeps the epoch's number refuses a lower one.
        if kept is not None and (kept == roster or kept.epoch > roster.epoch):
            return
        try:
            check(kept, roster)
        except RosterBreaksCells as error:
            if self._refused != roster.digest():
                self._refused = roster.digest()
                self._audit.refused("roster refused", run=run, round_id=RoundId(0), error=error)
            raise
        write_whole(self._path, roster.to_json(), private=True)

    def _kept_of(self, roster: Roster) -> Roster | None:
        """Return the roster kept of the same federation."""
        found = kept_roster(self._path.parent)
        ours = (roster.federation, roster.authority_key)
        if found is None or (found.federation, found.authority_key) != ours:
            return None
        return found
