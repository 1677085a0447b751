"""Invitations: each lets one client apply, once, within fourteen days.

An invitation is a file with a key and a certificate, valid for one application and nothing else.
The authority stores the digest of its public key and the applicant that used it.
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
    """The authority's record of an invitation.

    Attributes:
        name: a display name.
        key_sha256: hexadecimal digest of its public key.
        expires_at: the expiry time, in seconds since the Unix epoch.
        confirm: whether people compare the client id before its owner becomes a member.
        used_by: the applicant that used it, or empty.
    """

    name: str
    key_sha256: str
    expires_at: int
    confirm: bool
    used_by: ClientId = ClientId("")  # noqa: RUF009  # a string


class Invitations:
    """The record of all invitations, replaced as a whole.

    Args:
        path: the file, created with the first invitation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def unused(self, now: int) -> tuple[str, ...]:
        """Return the names of unused invitations that have not expired."""
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
    """The record of all invitations, for the process that may change the folder."""

    def make(self, issuer: Issuer, name: str, into: Path, *, confirm: bool, now: int) -> None:
        """Make an invitation and write it into a file that only its owner can read.

        This revokes an earlier, unused one of the same name.

        Raises:
            KeysError: an invitation of that name was used.
        """
        known = self._known()
        if any(one.name == name and one.used_by for one in known.values()):
            raise KeysError(
                f"{name} has already applied with its invitation.",
                remedy="Choose another name. For new keys of the same party use `fedrec keys "
                "replace`.",
            )
        made = issuer.credentials("invitation", name)
        digest = hashlib.sha256(key_of(made.certificate)).hexdigest()
        invitation = Invitation(
            name=name,
            key_sha256=digest,
            expires_at=now + INVITATION_DAYS * DAY_SECONDS,
            confirm=confirm,
        )
        # Recorded before the invitation can be used.
        others = {key: one for key, one in known.items() if one.name != name}
        self._keep({**others, digest: invitation})
        replace_secret(into, made.to_pem())

    def take(self, application: SignedApplication, now: int) -> Invitation:
        """Return the invitation of an application and assign it to that applicant.

        Raises:
            InvitationUsed: another applicant used it.
            KeysError: this authority did not make it, or it expired.
        """
        known = self._known()
        digest = application.invitation_sha256.hex()
        found = known.get(digest)
        client_id = application.identity.client_id
        if found is None:
            raise KeysError("This authority did not make that invitation.")
        if found.used_by not in ("", client_id):
            raise InvitationUsed(
                f"The invitation {found.name!r} was already used by {found.used_by}.",
                remedy="If that is not the invited party, remove it: `fedrec keys roster remove`.",
            )
        if not found.used_by:
            if now > found.expires_at:
                last, present = (datetime.fromtimestamp(at, UTC) for at in (found.expires_at, now))
                raise KeysError(
                    f"The invitation {found.name!r} expired at {last:%Y-%m-%d %H:%M} UTC. This "
                    f"machine's clock reads {present:%Y-%m-%d %H:%M} UTC.",
                    remedy="Make a new one (`fedrec provision --add NAME`), or set the clock.",
                )
            found = replace(found, used_by=client_id)
            self._keep({**known, digest: found})
        return found

    def confirm_unused(self) -> None:
        """Let people compare the id of any client that applies with an invitation unused so far."""
        if known := self._known():
            asked = {
                key: replace(one, confirm=True) for key, one in known.items() if not one.used_by
            }
            self._keep({**known, **asked})

    def withdraw(self) -> tuple[str, ...]:
        """Revoke the unused invitations and return their names."""
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
