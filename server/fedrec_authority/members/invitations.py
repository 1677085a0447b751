"""Invitations: each lets one client apply, once, within fourteen days.

An invitation is a file with a key and a certificate that are good for an application and for
nothing else. The authority keeps the digest of its public key, and remembers who used it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fedrec.errors import InvitationUsed, KeysError
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import INVITATION_DAYS, Issuer, key_of
from fedrec.identity.document import (
    Document,
    JsonValue,
    read_public,
    replace_secret,
    write_document,
)
from fedrec.ids import ClientId

INVITATIONS_FILE = "invitations.json"
KIND = "fedrec invitations"
MAX_BYTES = 16 << 20
DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What the authority knows of one that it made.

    Attributes:
        name: for people.
        key_sha256: hexadecimal digest of its public key.
        expires_at: when, in seconds since the Unix epoch.
        confirm: whether people compare the client id before its owner becomes a member.
        used_by: who applied with it; empty while nobody did.
    """

    name: str
    key_sha256: str
    expires_at: int
    confirm: bool
    used_by: ClientId = ClientId("")  # noqa: RUF009  # a string


class Invitations:
    """The record of an authority's invitations, replaced as a whole.

    Args:
        path: the file; made with the first invitation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def unused(self, now: int) -> tuple[str, ...]:
        """Return the names of those that nobody applied with and that have not run out."""
        open_ = [one for one in self._known().values() if not one.used_by]
        return tuple(sorted(one.name for one in open_ if now <= one.expires_at))

    def _known(self) -> dict[str, Invitation]:
        if not self.path.exists():
            return {}
        raw = read_public(self.path, max_bytes=MAX_BYTES, remedy="Restore it from a backup.")
        document = Document.parse(raw, KIND, str(self.path))
        found = [_invitation(entry) for entry in document.objects("invitations")]
        document.finish()
        return {one.key_sha256: one for one in found}


class InvitationChanges(Invitations):
    """The record in the hand of the one process that changes the folder."""

    def make(self, issuer: Issuer, name: str, into: Path, *, confirm: bool, now: int) -> None:
        """Make an invitation and write it into a file that its owner alone reads.

        An earlier one of the same name that nobody used is good no more.

        Raises:
            KeysError: somebody applied with an invitation of that name.
        """
        known = self._known()
        if any(one.name == name and one.used_by for one in known.values()):
            raise KeysError(
                f"{name} has applied with its invitation already.",
                remedy="Choose another name; new keys of the same party take its place with "
                "`fedrec keys replace`.",
            )
        made = issuer.credentials("invitation", name)
        digest = hashlib.sha256(key_of(made.certificate)).hexdigest()
        invitation = Invitation(
            name=name,
            key_sha256=digest,
            expires_at=now + INVITATION_DAYS * DAY_SECONDS,
            confirm=confirm,
        )
        # Known before anybody can use it.
        others = {key: one for key, one in known.items() if one.name != name}
        self._keep({**others, digest: invitation})
        replace_secret(into, made.to_pem())

    def take(self, application: SignedApplication, now: int) -> Invitation:
        """Return the invitation of an application; from now on it is that applicant's.

        Raises:
            InvitationUsed: somebody else applied with it.
            KeysError: this authority did not make it, or it ran out.
        """
        known = self._known()
        digest = application.invitation_sha256.hex()
        found = known.get(digest)
        client_id = application.identity.client_id
        if found is None:
            raise KeysError("This authority made no such invitation.")
        if found.used_by not in ("", client_id):
            raise InvitationUsed(
                f"The invitation {found.name!r} was used already, by {found.used_by}.",
                remedy="If that is not who was invited, remove it: `fedrec keys roster remove`.",
            )
        if not found.used_by:
            if now > found.expires_at:
                last, present = (datetime.fromtimestamp(at, UTC) for at in (found.expires_at, now))
                raise KeysError(
                    f"The invitation {found.name!r} ran out at {last:%Y-%m-%d %H:%M} UTC; this "
                    f"machine's clock says {present:%Y-%m-%d %H:%M} UTC.",
                    remedy="Make another one (`fedrec provision --add NAME`), or set the clock.",
                )
            found = replace(found, used_by=client_id)
            self._keep({**known, digest: found})
        return found

    def withdraw(self) -> tuple[str, ...]:
        """Forget those that nobody applied with; return their names."""
        known = self._known()
        if not known:
            return ()
        self._keep({key: one for key, one in known.items() if one.used_by})
        return tuple(sorted(one.name for one in known.values() if not one.used_by))

    def _keep(self, known: dict[str, Invitation]) -> None:
        entries: list[JsonValue] = [
            {
                "name": one.name,
                "key_sha256": one.key_sha256,
                "expires_at": one.expires_at,
                "confirm": int(one.confirm),
                "used_by": one.used_by,
            }
            for one in known.values()
        ]
        replace_secret(self.path, write_document(KIND, {"invitations": entries}))


def _invitation(entry: Document) -> Invitation:
    found = Invitation(
        name=entry.text("name"),
        key_sha256=entry.text("key_sha256"),
        expires_at=entry.integer("expires_at"),
        confirm=bool(entry.integer("confirm")),
        used_by=ClientId(entry.text("used_by")),
    )
    entry.finish()
    return found
