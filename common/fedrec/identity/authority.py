"""The data owners' key authority: it signs rosters and makes the secrets that members share.

It runs on a machine that the data owners trust, never on the coordinator's machine, and only when
membership or keys change.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedrec.identity.cells import Partition
from fedrec.identity.certificates import Issuer, certificate_sha256
from fedrec.identity.document import (
    Document,
    JsonValue,
    encode_bytes,
    read_secret,
    replace_secret,
    write_document,
    write_secret,
)
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import (
    SECRET_PURPOSE,
    EpochSecrets,
    sealing_context,
    wrapping_context,
)
from fedrec.identity.public import PublicIdentity
from fedrec.identity.roster import Roster, check_cells
from fedrec.identity.sealing import KEY_BYTES, seal, wrap
from fedrec.identity.secret import Secret

KIND = "fedrec authority"
AUTHORITY_FILE = "authority.key"
AUTHORITY_FOLDER = "authority"
EPOCH_FILE = "epoch.json"
ROSTERS_FOLDER = "rosters"


class Authority(Secret):
    """An Ed25519 key that signs rosters, and the issuer of the federation's certificates.

    Every client pins both public halves.
    """

    __slots__ = ("_signing_key", "issuer")

    def __init__(self, signing_key: Ed25519PrivateKey, issuer: Issuer) -> None:
        self._signing_key = signing_key
        self.issuer = issuer

    @classmethod
    def create(cls) -> Authority:
        """Generate the roster key and the issuer's key."""
        return cls(Ed25519PrivateKey.generate(), Issuer.create())

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""
        return self._signing_key.public_key().public_bytes_raw()

    def save(self, folder: Path) -> None:
        """Write the keys, readable by the owner only.

        Raises:
            KeysError: the folder already holds an authority.
        """
        write_secret(folder / AUTHORITY_FILE, self._document())

    def renew_issuer(self, folder: Path) -> None:
        """Replace the issuer on disk by a new one and keep the roster key."""
        self.issuer = Issuer.create()
        replace_secret(folder / AUTHORITY_FILE, self._document())

    def _document(self) -> bytes:
        fields: dict[str, JsonValue] = {
            "signing_key": encode_bytes(self._signing_key.private_bytes_raw()),
            "issuer": encode_bytes(self.issuer.to_pem()),
        }
        return write_document(KIND, fields)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Read what `save` wrote.

        Raises:
            KeysError: the folder is missing, damaged or readable by other users.
        """
        path = folder / AUTHORITY_FILE
        remedy = (
            "Run `fedrec keys` on the machine where the authority was made, or restore the "
            "folder from a backup."
        )
        document = Document.parse(read_secret(path, remedy=remedy), KIND, str(path))
        signing_key = document.raw("signing_key", length=32)
        issuer = Issuer.from_pem(document.raw("issuer"), str(path))
        document.finish()
        return cls(Ed25519PrivateKey.from_private_bytes(signing_key), issuer)

    def new_epoch(
        self,
        *,
        federation: str,
        epoch: int,
        members: Iterable[PublicIdentity],
        minimum_summands: int,
        protection: str,
        protection_fingerprint: str,
        server_context: bytes,
        protection_secret: bytes,
        revealer: PublicIdentity | None = None,
        previous: Roster | None = None,
        partition: Partition | None = None,
    ) -> KeyEpoch:
        """Make a group key, sign the roster and wrap the secrets for every member.

        Args:
            federation: the federation's name.
            epoch: higher than every earlier epoch of this federation.
            members: the members, each with a valid proof.
            minimum_summands: the smallest number of distinct members in an opened sum.
            protection: the protection's name.
            protection_fingerprint: hexadecimal digest of its parameters.
            server_context: its context without any key.
            protection_secret: the key with which members protect updates. It is the encryption key
                if there is a revealer, the secret context otherwise, and empty if the protection
                has none.
            revealer: the only party that opens sums, or None if members do.
            previous: the roster of the epoch before.
            partition: the cells, or None for a roster without cells.

        Raises:
            RosterBreaksCells: the cells break a rule or do not follow from the previous roster.
            KeysError: a member appears twice or a field is invalid.
            BadSignature: a member's proof does not cover its keys.
        """
        members = tuple(members)
        for holder in members if revealer is None else (*members, revealer):
            holder.check_proof()
        held = EpochSecrets(
            group_key=secrets.token_bytes(KEY_BYTES), protection_secret=protection_secret
        )
        unsigned = Roster(
            federation=federation,
            epoch=epoch,
            members=members,
            minimum_summands=minimum_summands,
            protection=protection,
            protection_fingerprint=protection_fingerprint,
            context_sha256=hashlib.sha256(server_context).digest(),
            secrets_sha256=held.commitment(federation, epoch),
            authority_key=self.public_key,
            ca_sha256=certificate_sha256(self.issuer.certificate),
            revealer=revealer,
            previous=b"" if previous is None else previous.digest(),
            partition=partition or Partition(),
        )
        check_cells(previous, unsigned)
        roster = replace(unsigned, signature=self._signing_key.sign(unsigned.statement()))
        wrapped_keys = {
            holder.client_id: wrap(
                holder.exchange_key,
                wrapping_context(federation, epoch, holder.client_id),
                held.group_key,
            )
            for holder in roster.holders
        }
        sealed_secret = seal(
            held.group_key, SECRET_PURPOSE, sealing_context(federation, epoch), protection_secret
        )
        held.destroy()
        return KeyEpoch(
            roster=roster,
            server_context=server_context,
            wrapped_keys=wrapped_keys,
            sealed_secret=sealed_secret,
            certificates={
                holder.client_id: self.issuer.issue("client", holder.client_id, holder.tls_key)
                for holder in roster.holders
            },
        )
