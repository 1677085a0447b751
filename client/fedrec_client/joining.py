"""Apply to become a member, leave permanently, and keep the newest accepted roster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fedrec.errors import RosterBreaksCells, SettingsError, StorageError
from fedrec.follower.patient_link import Backoff
from fedrec.follower.round_journal import AuditLog, RoundJournal
from fedrec.identity.application import SignedApplication
from fedrec.identity.cells import Cell, Partition, guest_consent
from fedrec.identity.certificates import check_certificate
from fedrec.identity.document import destroy_secret, write_public
from fedrec.identity.identity import Identity, known_identity
from fedrec.identity.roster import Roster, check_cells
from fedrec.ids import ClientId, RoundId
from fedrec.settings.schema import Settings
from fedrec.wire.link import Link
from fedrec_client.connecting import (
    certificate_path,
    invitation_of,
    open_link,
    own_credentials,
)
from fedrec_client.state.private_store import PrivateStore

_RECORD = "roster"


def kept_roster(store: PrivateStore) -> Roster | None:
    """Return the newest roster that the client of a state folder accepted, if any.

    Raises:
        KeysError: the file is not a roster.
    """
    found = store.own(_RECORD)
    return None if found is None else Roster.from_json(found)


class RosterChain:
    """Keeps a federation's newest roster in the state folder.

    It is kept when the client joins another run, because sums over the same data were opened
    before.
    """

    def __init__(self, store: PrivateStore, audit: AuditLog) -> None:
        self._store = store
        self._audit = audit
        self._refused = b""

    def admit(self, roster: Roster, run: str) -> None:
        """Keep a roster that follows from the stored one. An older one changes nothing.

        Raises:
            RosterBreaksCells: the roster does not follow. It is in the audit, once.
            KeysError: the stored file is not a roster.
        """
        kept = self._kept_of(roster)
        # A client that keeps the epoch's number refuses a lower one.
        if kept is not None and (kept == roster or kept.epoch > roster.epoch):
            return
        try:
            check_cells(kept, roster)
        except RosterBreaksCells as error:
            if self._refused != roster.digest():
                self._refused = roster.digest()
                self._audit.refused("roster refused", run=run, round_id=RoundId(0), error=error)
            raise
        self._store.keep_own(_RECORD, roster.to_json())

    def _kept_of(self, roster: Roster) -> Roster | None:
        """Return the stored roster of the same federation."""
        found = kept_roster(self._store)
        ours = (roster.federation, roster.authority_key)
        if found is None or (found.federation, found.authority_key) != ours:
            return None
        return found


SHOWN_CHARS = 16
"""Number of characters of a client id that `fedrec keys roster admit` needs."""


def sign_guest_consent(identity: Identity, federation: str) -> bytes:
    """Return this client's signature that it may be missing from a federation's sums."""
    return identity.sign(guest_consent(federation, identity.client_id))


def waiting_detail(identity: Identity) -> str:
    """Return the reason for which this client waits, as text."""
    client_id = identity.client_id
    return (
        f"waiting for the data owners: client id {client_id}. Their key authority admits an "
        "invited client by itself. Otherwise they compare the id by telephone, then run "
        f"`fedrec keys roster admit {client_id[:SHOWN_CHARS]}`"
    )


def join(
    link: Link, identity: Identity, settings: Settings, journal: RoundJournal, backoff: Backoff
) -> None:
    """Apply with the invitation, wait to be admitted, and keep the certificate.

    It returns once this client's certificate is stored and the invitation is deleted.

    Args:
        link: the coordinator, called with the invitation. It retries.
        identity: the keys, whose public half is submitted.
        settings: they name the invitation and the certificate's path.
        journal: records that the client waits.
        backoff: the pauses between requests. A request to stop ends them.

    Raises:
        InvitationUsed: the invitation was used by another applicant.
        KeysError: another authority issued the invitation, or the coordinator sent a certificate
            that is not the state of this client.
        Stopped: a stop was requested.
    """
    invitation, issuer = invitation_of(settings)
    goes_on = settings.client.when_away == "go_on"
    consent = sign_guest_consent(identity, settings.federation.name) if goes_on else b""
    application = SignedApplication.make(identity.public, invitation, consent=consent).to_json()
    asked = 0
    while not (found := link.apply(application)).listed:
        if not asked:
            journal.tell("waiting_to_join", detail=waiting_detail(identity))
        backoff.pause(asked)
        asked += 1
    check_certificate(
        found.certificate, identity.public.tls_key, issuer, "The received certificate"
    )
    write_public(certificate_path(settings), found.certificate)
    # It is worthless now, and a mistyped folder must not look like a first start.
    with suppress(StorageError):
        destroy_secret(Path(settings.client.invitation or ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A submitted departure.

    Attributes:
        others: number of clients left of those that were in all of its sums.
        needed: number of clients needed.
    """

    client_id: ClientId
    others: int
    needed: int
    others_go_on: bool


def leave(settings: Settings, *, link: Link | None = None) -> Leave:
    """Sign that this client may be missing, and submit that for the key authority.

    It returns when the coordinator has stored it durably.

    Args:
        link: the coordinator. The default is gRPC to `client.coordinator`.

    Raises:
        SettingsError: rounds do not wait for this client.
        FedrecError: its keys or certificate cannot be used, or the coordinator does not answer.
    """
    identity = known_identity(Path(settings.client.state), settings.client.label)
    roster = kept_roster(PrivateStore(Path(settings.client.state), read_only=True))
    partition = Partition() if roster is None else roster.partition
    cell = partition.cell_of(identity.client_id)
    if roster is None or cell is None or identity.client_id not in cell.core:
        why = "it is a guest already" if cell is not None else "it was in no sum yet"
        if roster is not None and not partition.cell_size:
            why = "this federation's settings name no client for which rounds must wait"
        raise SettingsError(
            f"Rounds do not wait for the client {identity.client_id[:16]}: {why}.",
            remedy="Stop it, and it contributes nothing more. The data owners remove it with "
            "`fedrec keys roster remove`.",
        )
    application = SignedApplication.make(
        identity.public,
        own_credentials(settings),
        consent=sign_guest_consent(identity, roster.federation),
    )
    calling = link or open_link(settings)
    try:
        calling.apply(application.to_json())
    finally:
        calling.close()
    return Leave(
        client_id=identity.client_id,
        others=len(cell.core) - 1,
        needed=partition.cell_size,
        others_go_on=_continues_without(identity.client_id, partition, cell),
    )


def _continues_without(client_id: ClientId, partition: Partition, cell: Cell) -> bool:
    core = tuple(one for one in cell.core if one != client_id)
    shrunk = replace(cell, core=core, guests=(*cell.guests, client_id))
    cells = tuple(shrunk if one.id == cell.id else one for one in partition.cells)
    return replace(partition, cells=cells).thin() is None
