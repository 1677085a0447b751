"""The public bundle of a key epoch, which the authority gives to the coordinator."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedrec.errors import KeysError
from fedrec.identity.document import (
    Document,
    encode_bytes,
    read_public,
    write_document,
    write_public,
)
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, canonical

KIND = "fedrec key epoch"
MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEpoch:
    """A signed roster with the sealed secrets that the coordinator relays.

    It can read none of them.

    Attributes:
        roster: the members and terms.
        server_context: the protection's context without any key.
        wrapped_keys: the group key, wrapped for each member and the revealer.
        sealed_secret: the protection's secret for members, sealed under the group key. It is stored
            once, because a copy for each member would make the bundle large.
        certificates: the public certificate (PEM) for the TLS key of each.
    """

    roster: Roster
    server_context: bytes
    wrapped_keys: Mapping[ClientId, bytes]
    sealed_secret: bytes
    certificates: Mapping[ClientId, bytes]

    def __post_init__(self) -> None:
        self.roster.verify(self.roster.authority_key)
        problem = ""
        if hashlib.sha256(self.server_context).digest() != self.roster.context_sha256:
            problem = "the server context does not match the roster's digest"
        holders = {holder.client_id for holder in self.roster.holders}
        if set(self.wrapped_keys) != holders:
            problem = "the wrapped keys do not match the members and the revealer"
        if set(self.certificates) != holders:
            problem = "the certificates do not match the members and the revealer"
        if problem:
            raise KeysError(
                f"The parts of key epoch {self.roster.epoch} do not belong together: {problem}.",
                remedy="Ask the key authority for the file again.",
            )

    def secrets_for(self, client_id: ClientId) -> bytes:
        """Return the input of a member or the revealer for `open_epoch`, or empty for others."""
        wrapped = self.wrapped_keys.get(client_id)
        return (
            b"" if wrapped is None else canonical("fedrec wrapped v1", wrapped, self.sealed_secret)
        )

    def to_json(self) -> bytes:
        """Return the canonical JSON."""
        return write_document(
            KIND,
            {
                "roster": self.roster.to_json().decode("ascii"),
                "server_context": encode_bytes(self.server_context),
                "wrapped_keys": {c: encode_bytes(w) for c, w in self.wrapped_keys.items()},
                "sealed_secret": encode_bytes(self.sealed_secret),
                "certificates": {c: p.decode("ascii") for c, p in self.certificates.items()},
            },
        )

    @classmethod
    def from_json(cls, raw: bytes) -> KeyEpoch:
        """Parse the output of `to_json` and check that its parts belong together.

        Raises:
            KeysError: the document is damaged.
            BadSignature: the roster's signature does not verify.
        """
        document = Document.parse(raw, KIND, "The key epoch")
        wrapped = document.mapping("wrapped_keys")
        issued = document.mapping("certificates")
        roster = document.json_text("roster").encode()
        found = cls(
            roster=Roster.from_json(roster),
            server_context=document.raw("server_context"),
            wrapped_keys={ClientId(name): wrapped.raw(name) for name in wrapped.names()},
            sealed_secret=document.raw("sealed_secret"),
            certificates={
                ClientId(name): issued.json_text(name).encode() for name in issued.names()
            },
        )
        document.finish()
        return found

    def save(self, path: Path) -> None:
        """Write the canonical JSON to a file."""
        write_public(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> KeyEpoch:
        """Read a file that `save` wrote and check it."""
        return cls.from_json(
            read_public(path, max_bytes=MAX_BYTES, remedy="Ask the key authority for it.")
        )
