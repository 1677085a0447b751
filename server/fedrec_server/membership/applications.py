"""Who asks to become a member: kept for the key authority to fetch, and trusted in nothing.

Only holders of an invitation get here, and each invitation is good for one identity for good, so
that there are never more applications than the authority made invitations. Besides, each member may
hand in one: that it leaves its cell's core.
"""

from __future__ import annotations

import hashlib

from fedrec.errors import BadSignature, FedrecError, InvitationUsed, ProtocolError, RefusedError
from fedrec.identity.application import SignedApplication
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec_server.run.work import Work
from fedrec_server.store.store import Applicant, Store

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
        self._labels: dict[ClientId, str] = {}

    async def apply(self, raw: bytes, invitation: bytes, *, invited: bool = True) -> ClientId:
        """Keep an application, durably; return whose it is.

        One that is kept already stays, unless its applicant changed its word as a guest.

        Args:
            raw: a signed application.
            invitation: the public key of the certificate with which it came.
            invited: whether that is an invitation; else it is a member's own.

        Raises:
            InvitationUsed: somebody else applied with this invitation.
            BadSignature: a key was exchanged, or another invitation signed it.
            ProtocolError: it is no application.
            RefusedError: a member hands in another one than that it leaves its cell's core.
        """
        application = _read(raw)
        if application.invitation != invitation:
            raise BadSignature("The application came with another invitation than it is signed by.")
        client_id = application.identity.client_id
        if not invited and not (application.is_leave and application.consent):
            raise RefusedError("A member applies for itself alone, and to be a guest.")
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

    def labels(self) -> list[str]:
        """Return what all who ever applied call themselves; an id's beginning for an empty one."""
        for one in self._known.values():
            if one.client_id not in self._labels:
                label = _read(one.application).identity.label
                self._labels[one.client_id] = label or one.client_id[:16]
        return sorted(self._labels[one.client_id] for one in self._known.values())

    def waiting(self, roster: Roster) -> list[bytes]:
        """Return what the key authority has to look at.

        Applications of those who are no members, and of members that are to be guests and are not.
        """
        found = sorted(self._known.values(), key=lambda applicant: applicant.client_id)
        return [one.application for one in found if _is_open(one, roster)]


def _is_open(applicant: Applicant, roster: Roster) -> bool:
    if not roster.contains(applicant.client_id):
        return True
    own = hashlib.sha256(roster.member(applicant.client_id).tls_key).digest()
    standing = roster.partition.standing(applicant.client_id)
    is_guest = standing is not None and bool(standing.consent)
    return applicant.invitation == own and not is_guest


def _read(raw: bytes) -> SignedApplication:
    try:
        return SignedApplication.from_json(raw)
    except BadSignature:
        raise
    except FedrecError as error:
        raise ProtocolError(f"The application cannot be used: {error.message}") from None
