"""Who asks to become a member: kept for the key authority to fetch, and trusted in nothing.

Only holders of an invitation get here, and each invitation is good for one identity for good, so
that there are never more applications than the authority made invitations.
"""

from __future__ import annotations

from collections.abc import Callable

from fedrec.errors import BadSignature, FedrecError, InvitationUsed, ProtocolError
from fedrec.identity.application import SignedApplication
from fedrec.ids import ClientId
from fedrec_server.store.store import Applicant, Store
from fedrec_server.work import Work

__all__ = ["Applications"]


class Applications:
    """The applications of one run; they survive a restart.

    Args:
        store: keeps them; used in `work`'s thread only, but for the first reading.
    """

    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work
        self._known = {found.invitation: found for found in store.applicants()}

    async def apply(self, raw: bytes, invitation: bytes) -> ClientId:
        """Keep an application, durably; return whose it is.

        One that is kept already stays, unless its applicant changed its word as a guest.

        Args:
            raw: a signed application.
            invitation: the public key of the certificate with which it came.

        Raises:
            InvitationUsed: somebody else applied with this invitation.
            BadSignature: a key was exchanged, or another invitation signed it.
            ProtocolError: it is no application.
        """
        application = _read(raw)
        if application.invitation != invitation:
            raise BadSignature("The application came with another invitation than it is signed by.")
        client_id = application.identity.client_id
        key = application.invitation_sha256
        known = self._known.get(key)
        if known is not None:
            before = _read(known.application)
            if before.identity != application.identity:
                raise InvitationUsed(f"The invitation is {known.client_id[:16]}'s already.")
            if before.consent == application.consent:
                return client_id
        # Taken before anything is awaited: of many at once one gets it.
        made = Applicant(invitation=key, client_id=client_id, application=raw)
        self._known[key] = made
        try:
            await self._work.in_thread(self._store.keep_applicant, made)
        except BaseException:
            del self._known[key]
            if known is not None:
                self._known[key] = known
            raise
        return client_id

    def waiting(self, is_member: Callable[[ClientId], bool]) -> list[bytes]:
        """Return the applications of those who are no members."""
        found = sorted(self._known.values(), key=lambda applicant: applicant.client_id)
        return [one.application for one in found if not is_member(one.client_id)]


def _read(raw: bytes) -> SignedApplication:
    try:
        return SignedApplication.from_json(raw)
    except BadSignature:
        raise
    except FedrecError as error:
        raise ProtocolError(f"The application cannot be used: {error.message}") from None
