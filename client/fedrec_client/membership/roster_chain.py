"""The newest roster that this client believed, which the next one has to follow from."""

from __future__ import annotations

from fedrec.errors import RosterBreaksCells
from fedrec.identity.cell_rules import check
from fedrec.identity.roster import Roster
from fedrec.ids import RoundId
from fedrec_client.state.audit import AuditLog
from fedrec_client.state.private_store import PrivateStore

__all__ = ["RosterChain", "kept_roster"]

_RECORD = "roster"


def kept_roster(store: PrivateStore) -> Roster | None:
    """Return the newest roster that the client of a state folder believed, if it knows one.

    Raises:
        KeysError: it is none.
    """
    found = store.own(_RECORD)
    return None if found is None else Roster.from_json(found)


class RosterChain:
    """Keeps one federation's newest roster in the state folder.

    It stays when the client goes on with another run: sums over the same data were opened before.
    """

    def __init__(self, store: PrivateStore, audit: AuditLog) -> None:
        self._store = store
        self._audit = audit
        self._refused = b""

    def admit(self, roster: Roster, run: str) -> None:
        """Keep a roster that follows from the one kept; an older one changes nothing.

        Raises:
            RosterBreaksCells: it does not follow; it is in the audit, once.
            KeysError: what was kept is none.
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
        self._store.keep_own(_RECORD, roster.to_json())

    def _kept_of(self, roster: Roster) -> Roster | None:
        """Return the roster kept of the same federation."""
        found = kept_roster(self._store)
        ours = (roster.federation, roster.authority_key)
        if found is None or (found.federation, found.authority_key) != ours:
            return None
        return found
