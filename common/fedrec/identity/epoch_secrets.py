"""The secrets of a key epoch, how a member opens them, and a revealer's own keys."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fedrec.errors import BadSignature, KeysError, MalformedUpdate
from fedrec.identity.document import (
    Document,
    JsonValue,
    destroy_secret,
    encode_bytes,
    read_secret,
    replace_secret,
    write_document,
)
from fedrec.identity.identity import KEY_FILE, Identity
from fedrec.identity.roster import Roster
from fedrec.identity.sealing import KEY_BYTES, unseal, unwrap
from fedrec.identity.secret import Secret
from fedrec.ids import ClientId, canonical, digest

SECRET_PURPOSE = "protection secret"


class EpochSecrets(Secret):
    """The secrets that all members of an epoch share and the coordinator does not know.

    Args:
        group_key: 32 random bytes for sealing and tagging.
        protection_secret: the key with which members protect updates: the protection's secret
            context or, if the roster names a revealer, the encryption key. Empty if the protection
            has none.
    """

    __slots__ = ("_group_key", "_protection_secret")

    def __init__(self, *, group_key: bytes, protection_secret: bytes) -> None:
        if len(group_key) != KEY_BYTES:
            raise KeysError(f"A group key has {KEY_BYTES} bytes, found {len(group_key)}.")
        self._group_key: bytearray | None = bytearray(group_key)
        self._protection_secret: bytearray | None = bytearray(protection_secret)

    @property
    def group_key(self) -> bytes:
        """The key for `seal`, `unseal` and `keyed_tag`."""
        return _held(self._group_key)

    @property
    def protection_secret(self) -> bytes:
        """The key with which members protect updates, as described in the class."""
        return _held(self._protection_secret)

    def commitment(self, federation: str, epoch: int) -> bytes:
        """Return the digest by which a signed roster commits to these secrets."""
        return digest(
            "fedrec epoch secrets v1", federation, epoch, self.group_key, self.protection_secret
        )

    def destroy(self) -> None:
        """Overwrite the secrets. Later use raises an error.

        Copies made by the interpreter or a library may stay in memory until it is reused.
        """
        for held in (self._group_key, self._protection_secret):
            if held is not None:
                held[:] = bytes(len(held))
        self._group_key = self._protection_secret = None


def _held(secret: bytearray | None) -> bytes:
    if secret is None:
        raise KeysError(
            "The secrets of this epoch were destroyed.", remedy="Open the current epoch."
        )
    return bytes(secret)


def wrapping_context(federation: str, epoch: int, client_id: ClientId) -> bytes:
    """Return the context for wrapping a member's copy of the group key."""
    return canonical("fedrec group key v1", federation, epoch, client_id)


def sealing_context(federation: str, epoch: int) -> bytes:
    """Return the context for sealing the protection's secret."""
    return canonical("fedrec protection secret v1", federation, epoch)


def open_epoch(
    *,
    roster_json: bytes,
    server_context: bytes,
    wrapped: bytes,
    identity: Identity,
    pinned_authority_key: bytes,
) -> tuple[Roster, EpochSecrets]:
    """Check a key epoch from the coordinator and open this member's secrets.

    A revealer does the same. The key with which it opens sums is in its own folder
    (`RevealerKeys`).

    This function has no memory of earlier epochs: the caller refuses an epoch below one that it has
    seen.

    Args:
        roster_json: the signed roster.
        server_context: the protection's keyless context.
        wrapped: the result of `KeyEpoch.secrets_for` for this client.
        identity: this client's keys.
        pinned_authority_key: the authority's public key, from the data owners.

    Raises:
        BadSignature: the authority did not sign the roster, or the secrets are not the ones that it
            made.
        NotInRoster: this client is neither a member nor the revealer.
        KeysError: a part is missing, damaged or belongs to a different epoch.
    """
    roster = Roster.from_json(roster_json)
    roster.verify(pinned_authority_key)
    member = roster.holder(identity.client_id)
    if member.exchange_key != identity.public.exchange_key:
        raise KeysError(
            "The roster lists another exchange key for this client.",
            remedy="Send the current identity.pub.json to the key authority and ask for a new "
            "epoch.",
        )
    if hashlib.sha256(server_context).digest() != roster.context_sha256:
        raise KeysError(
            "The protection's context is not the one that the key authority signed.",
            remedy="The coordinator must load the epoch's file exactly as the key authority made "
            "it.",
        )
    secrets = _unwrap(roster, wrapped, identity)
    if secrets.commitment(roster.federation, roster.epoch) != roster.secrets_sha256:
        secrets.destroy()
        raise BadSignature(
            "The epoch's secrets are not the ones that the key authority made.",
            remedy="Do not take part. Tell the data owners that the secrets were replaced.",
        )
    return roster, secrets


def _unwrap(roster: Roster, wrapped: bytes, identity: Identity) -> EpochSecrets:
    remedy = "The coordinator must load the epoch's file exactly as the key authority made it."
    if not wrapped:
        raise KeysError(
            f"The coordinator sent no secrets of epoch {roster.epoch} for this member.",
            remedy=remedy,
        )
    context = wrapping_context(roster.federation, roster.epoch, identity.client_id)
    try:
        wrapped_key, sealed_secret = secrets_parts(wrapped)
        group_key = unwrap(identity, context, wrapped_key)
        secret = unseal(
            group_key,
            SECRET_PURPOSE,
            sealing_context(roster.federation, roster.epoch),
            sealed_secret,
        )
        return EpochSecrets(group_key=group_key, protection_secret=secret)
    except (BadSignature, MalformedUpdate) as error:
        raise KeysError(
            f"This client's keys cannot unwrap the secrets of epoch {roster.epoch}.",
            remedy=remedy,
        ) from error


def secrets_parts(wrapped: bytes) -> tuple[bytes, bytes]:
    """Split the result of `KeyEpoch.secrets_for`: one member's wrapped key, and the shared secret.

    Raises:
        MalformedUpdate: the bytes are truncated or of a different version.
    """
    parts = []
    rest = wrapped
    while rest:
        length = int.from_bytes(rest[:8], "big")
        parts.append(rest[8 : 8 + length])
        rest = rest[8 + length :]
        if len(parts) > 3:
            break
    if len(parts) != 3 or canonical("fedrec wrapped v1", *parts[1:]) != wrapped:
        raise MalformedUpdate("The wrapped secrets are truncated or of a different version.")
    return parts[1], parts[2]


REVEALER_FOLDER = "revealer"
KIND = "fedrec revealer secret"
LABEL = "key authority"
MAX_BYTES = 64 << 20
_NAME = re.compile(r"epoch-(\d{8})\.secret")
_REMEDY = (
    "Backups contain no secret keys of epochs. Make a new epoch with `fedrec keys rotate`. The "
    "members keep the model."
)


class RevealerKeys:
    """The folder with a revealer's keys, for reading.

    Args:
        folder: created together with the first key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> Identity:
        """Return the revealer's identity.

        Raises:
            KeysError: the folder holds none.
        """
        if not (self.folder / KEY_FILE).exists():
            raise KeysError(f"{self.folder} holds no revealer's keys.", remedy=_REMEDY)
        return Identity.load(self.folder)

    def secret_of(self, epoch: int) -> bytes:
        """Return an epoch's secret key.

        Raises:
            KeysError: the key is missing, damaged, or readable by other users.
        """
        path = self._path(epoch)
        if not path.exists() and epoch < (newest := max(self.epochs, default=0)):
            raise KeysError(
                f"The coordinator is in key epoch {epoch}. This folder has the secret key of epoch "
                f"{newest} instead.",
                remedy=f"`fedrec keys authority run` delivers epoch {newest}. If it prints `epoch "
                f"refused`, start the coordinator with epoch {newest}'s epoch.json.",
            )
        raw = read_secret(path, remedy=_REMEDY, max_bytes=MAX_BYTES)
        document = Document.parse(raw, KIND, str(path))
        found, secret = document.integer("epoch"), document.raw("secret")
        document.finish()
        if found != epoch:
            raise document.problem(f"is of epoch {found}, not {epoch}")
        return secret

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs whose secret keys are in the folder, in ascending order."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("epoch-*"))
        return tuple(sorted(int(name[1]) for name in names if name))

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:08d}.secret"


class RevealerKeyChanges(RevealerKeys):
    """The folder with a revealer's keys, for the one process that may change them."""

    def load_or_create(self) -> Identity:
        """Return the revealer's identity, or make one on the first call."""
        return Identity.load_or_create(self.folder, LABEL)

    def keep(self, epoch: int, secret: bytes) -> None:
        """Write an epoch's secret key.

        It may replace one of the same epoch that was never published.
        """
        fields: dict[str, JsonValue] = {"epoch": epoch, "secret": encode_bytes(secret)}
        replace_secret(self._path(epoch), write_document(KIND, fields))

    def destroy_before(self, epoch: int) -> None:
        """Overwrite and delete the secret keys of earlier epochs without open rounds."""
        for old in self.epochs:
            if old < epoch:
                destroy_secret(self._path(old))
