"""Who asks to become a member: kept for the key authority to fetch, and trusted in nothing.

Whoever has the clients' token can apply, so that number, length and rate are bounded. Those who
wait apply again every now and then; when there is no room, whoever was silent longest gives way.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedrec.clock import Clock
from fedrec.errors import FedrecError, ProtocolError, TooLarge
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId
from fedrec_server.store.store import Applicant, Store
from fedrec_server.work import Work

__all__ = ["MAX_APPLICANTS", "MAX_IDENTITY_BYTES", "Applications"]

MAX_APPLICANTS = 256
MAX_IDENTITY_BYTES = 4096
BURST = 60
NEW_PER_SECOND = 1.0
SILENT_SECONDS = 600.0


class Applications:
    """The applicants of one run; survives a restart, but not who was heard of when.

    Args:
        store: keeps them; used in `work`'s thread only, but for the first reading.
    """

    def __init__(self, store: Store, work: Work, clock: Clock) -> None:
        self._store = store
        self._work = work
        self._clock = clock
        self._known = {found.client_id: found for found in store.applicants()}
        self._heard = {client_id: clock.now() for client_id in self._known}
        self._allowance = float(BURST)
        self._refilled_at = clock.now()

    async def apply(self, raw: bytes) -> None:
        """Keep an application; one that is kept already is only noted.

        Args:
            raw: canonical JSON of a public identity.

        Raises:
            TooLarge: it is too long, or too many came; later there may be room.
            ProtocolError: it is no public identity, or its keys do not vouch for each other.
        """
        client_id = identity_of(raw).client_id
        now = self._clock.now()
        known = self._known.get(client_id)
        self._heard[client_id] = now
        if known is not None and known.public_identity == raw:
            return
        try:
            self._spend(now)
            gone = () if known is not None else self._make_room(now)
        except TooLarge:
            if known is None:
                del self._heard[client_id]
            raise
        applicant = Applicant(client_id=client_id, public_identity=raw, unix_seconds=now)
        self._known[client_id] = applicant
        for other in gone:
            self._drop(other)
        await self._work.in_thread(self._keep, applicant, gone)

    async def forget(self, clients: Iterable[ClientId]) -> None:
        """Forget those who are members now."""
        gone = tuple(client_id for client_id in clients if client_id in self._known)
        for client_id in gone:
            self._drop(client_id)
        if gone:
            await self._work.in_thread(self._store.forget_applicants, gone)

    @property
    def identities(self) -> list[bytes]:
        """Return the canonical JSON of all applicants' public identities."""
        return [self._known[client_id].public_identity for client_id in sorted(self._known)]

    def _spend(self, now: float) -> None:
        passed = max(0.0, now - self._refilled_at)
        self._allowance = min(float(BURST), self._allowance + passed * NEW_PER_SECOND)
        self._refilled_at = now
        if self._allowance < 1.0:
            raise TooLarge("Too many clients apply at once.", remedy="Apply again in a minute.")
        self._allowance -= 1.0

    def _make_room(self, now: float) -> tuple[ClientId, ...]:
        """Return whom a new applicant replaces."""
        if len(self._known) < MAX_APPLICANTS:
            return ()
        silent = min(self._known, key=lambda client_id: self._heard.get(client_id, 0.0))
        if now - self._heard.get(silent, 0.0) < SILENT_SECONDS:
            raise TooLarge(
                f"{MAX_APPLICANTS} clients wait for the key authority already.",
                remedy="Give identity.pub.json to the key authority in another way.",
            )
        return (silent,)

    def _drop(self, client_id: ClientId) -> None:
        self._known.pop(client_id, None)
        self._heard.pop(client_id, None)

    def _keep(self, applicant: Applicant, gone: tuple[ClientId, ...]) -> None:
        if gone:
            self._store.forget_applicants(gone)
        self._store.keep_applicant(applicant)


def identity_of(raw: bytes) -> PublicIdentity:
    """Return the public identity that an applicant hands in.

    Raises:
        TooLarge: it is longer than one can be.
        ProtocolError: it is none, not in canonical form, or its proof does not verify.
    """
    if len(raw) > MAX_IDENTITY_BYTES:
        raise TooLarge(
            f"A public identity of {len(raw)} bytes; at most {MAX_IDENTITY_BYTES} are allowed."
        )
    try:
        found = PublicIdentity.from_json(raw)
    except FedrecError as error:
        raise ProtocolError(f"The application cannot be used: {error.message}") from None
    if found.to_json() != raw:
        raise ProtocolError("The application is not in canonical form.")
    return found
