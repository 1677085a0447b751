"""An application: somebody's public identity, signed with an invitation of the key authority.

A relay can neither change a key in it nor hand in another's under the invitation. A
member that leaves its cell's core applies once more, with its own certificate's key.
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
    """Who asks to become a member, and at whose invitation.

    Attributes:
        identity: the applicant; its proof is checked.
        invitation: the invitation's public key, as SubjectPublicKeyInfo.
        signature: the invitation's, over the identity and the consent.
        consent: the applicant's own word that it may be missing from sums, which is not checked
            here (`fedrec.identity.cells.consents`); empty where all sums are to wait for it.
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
        """Whether a member signed it, with its own key, to be in its cell's core no more."""
        return self.invitation == self.identity.tls_key

    @property
    def invitation_sha256(self) -> bytes:
        """The digest by which the invitation is remembered."""
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
            TooLarge: it is longer than one can be.
            KeysError: it is damaged or not in canonical form.
            BadSignature: a key was exchanged, or the invitation did not sign it.
        """
        if len(raw) > MAX_APPLICATION_BYTES:
            raise TooLarge(
                f"An application of {len(raw)} bytes; at most {MAX_APPLICATION_BYTES} are allowed."
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
