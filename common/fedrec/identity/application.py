"""An application for membership: a public identity, signed with the key authority's invitation.

A relay can neither change a key in it nor use the invitation for another identity. A member that
leaves its cell's core sends another application, signed with its certificate's key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

from fedrec.errors import BadSignature, KeysError, TooLarge
from fedrec.identity.certificates import Credentials, key_of, verify_ecdsa
from fedrec.identity.document import Document, encode_bytes, write_document
from fedrec.identity.public import PublicIdentity
from fedrec.ids import canonical

KIND = "fedrec application"
MAX_APPLICATION_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedApplication:
    """The application of one client, with the invitation that admits it.

    Attributes:
        identity: the applicant, with its proof already checked.
        invitation: the invitation's public key, as SubjectPublicKeyInfo.
        signature: the invitation's signature over the identity and the consent.
        consent: the applicant's signed consent to be missing from sums, checked by
            `fedrec.identity.cells.consents` rather than here. Empty if all sums must wait for it.
    """

    identity: PublicIdentity
    invitation: bytes
    signature: bytes
    consent: bytes = b""

    @classmethod
    def make(
        cls, identity: PublicIdentity, invitation: Credentials, *, consent: bytes = b""
    ) -> Self:
        """Sign an identity with an invitation."""
        key = key_of(invitation.certificate)
        return cls(
            identity=identity,
            invitation=key,
            signature=invitation.sign(_statement(identity, key, consent)),
            consent=consent,
        )

    @property
    def is_leave(self) -> bool:
        """Whether a member signed it with its own key, to leave its cell's core."""
        return self.invitation == self.identity.tls_key

    @property
    def invitation_sha256(self) -> bytes:
        """The digest under which the authority stores the invitation."""
        return hashlib.sha256(self.invitation).digest()

    def to_json(self) -> bytes:
        """Return the canonical JSON."""
        fields = {
            "identity": self.identity.to_json().decode("ascii"),
            "invitation": encode_bytes(self.invitation),
            "signature": encode_bytes(self.signature),
            "consent": encode_bytes(self.consent),
        }
        return write_document(KIND, fields)

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Read what `to_json` wrote and check both signatures.

        Raises:
            TooLarge: the application is above the size limit.
            KeysError: the application is damaged or not in canonical form.
            BadSignature: a key was replaced, or the invitation did not sign it.
        """
        if len(raw) > MAX_APPLICATION_BYTES:
            raise TooLarge(
                f"The application has {len(raw)} bytes. The limit is {MAX_APPLICATION_BYTES}."
            )
        document = Document.parse(raw, KIND, "The application")
        found = cls(
            identity=PublicIdentity.from_json(document.json_text("identity").encode()),
            invitation=document.raw("invitation"),
            signature=document.raw("signature"),
            consent=document.raw("consent"),
        )
        document.finish()
        if found.to_json() != raw:
            raise KeysError("The application is not in canonical form.")
        statement = _statement(found.identity, found.invitation, found.consent)
        if not verify_ecdsa(found.invitation, statement, found.signature):
            raise BadSignature("The application is not signed with its invitation.")
        return found


def _statement(identity: PublicIdentity, invitation: bytes, consent: bytes) -> bytes:
    return canonical("fedrec application v1", identity.to_json(), invitation, consent)
