"""The public bundle of a key epoch: what the authority gives to the coordinator."""

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
    """A signed roster and what the coordinator relays; no secret is readable in it.

    Attributes:
        roster: the members and terms.
        server_context: the protection's context without any key.
        wrapped_keys: for each member, and a revealer, the group key, wrapped to its exchange key.
        sealed_secret: what members protect with, sealed under the group key; once for all of them,
            so that the bundle's size does not grow with their number times the secret's.
        certificates: for each of them, the certificate (PEM) for its TLS key; public.
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
            problem = "the server context is not the one that the roster names"
        holders = {holder.client_id for holder in self.roster.holders}
        if set(self.wrapped_keys) != holders:
            problem = "the wrapped keys are not exactly the members' and the revealer's"
        if set(self.certificates) != holders:
            problem = "the certificates are not exactly the members' and the revealer's"
        if problem:
            raise KeysError(
                f"The key epoch {self.roster.epoch} does not fit together: {problem}.",
                remedy="Ask the key authority for the file again.",
            )

    def secrets_for(self, client_id: ClientId) -> bytes:
        """Return what a member or the revealer opens with `open_epoch`; empty for others."""
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
        """Read what `to_json` wrote and check that its parts belong together.

        Raises:
            KeysError: when it is damaged.
            BadSignature: when the roster's signature does not verify.
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
        """Write the JSON to a file."""
        write_public(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> KeyEpoch:
        """Read a file that `save` wrote."""
        return cls.from_json(
            read_public(path, max_bytes=MAX_BYTES, remedy="Ask the key authority for it.")
        )
