"""The revealer's keys: who alone opens a federation's sums, and the secret keys of its epochs.

::

    identity.key, identity.pub.json   its Ed25519 and X25519 keys; the roster names them
    epoch-NNNNNNNN.secret             the protection's secret key of an epoch, of mode 0600

The files stay in the authority's folder. No copy is wrapped to anybody or handed to the
coordinator, and none is in a backup: an owner who loses the folder makes a new epoch.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedrec.errors import KeysError
from fedrec.identity.document import Document, JsonValue, encode_bytes, write_document
from fedrec.identity.identity import KEY_FILE, Identity
from fedrec.identity.key_files import destroy_secret, read_secret, replace_secret

__all__ = ["REVEALER_FOLDER", "RevealerKeyChanges", "RevealerKeys"]

REVEALER_FOLDER = "revealer"
KIND = "fedrec revealer secret"
LABEL = "key authority"
MAX_BYTES = 64 << 20
_NAME = re.compile(r"epoch-(\d{8})\.secret")
_REMEDY = (
    "Secret keys of epochs are in no backup. Make a new epoch with `fedrec keys rotate`; the "
    "members keep the model."
)


class RevealerKeys:
    """The folder of a revealer's keys.

    Args:
        folder: made with the first key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> Identity:
        """Return the revealer's identity.

        Raises:
            KeysError: none is here.
        """
        if not (self.folder / KEY_FILE).exists():
            raise KeysError(f"{self.folder} holds no keys of a revealer.", remedy=_REMEDY)
        return Identity.load(self.folder)

    def secret_of(self, epoch: int) -> bytes:
        """Return an epoch's secret key.

        Raises:
            KeysError: it is not here, damaged, or readable by others.
        """
        path = self._path(epoch)
        raw = read_secret(path, remedy=_REMEDY, max_bytes=MAX_BYTES)
        document = Document.parse(raw, KIND, str(path))
        found, secret = document.integer("epoch"), document.raw("secret")
        document.finish()
        if found != epoch:
            raise document.problem(f"is of epoch {found}, not {epoch}")
        return secret

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs whose secret keys are here, in ascending order."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("epoch-*"))
        return tuple(sorted(int(name[1]) for name in names if name))

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:08d}.secret"


class RevealerKeyChanges(RevealerKeys):
    """The keys in the hand of the one process that changes them."""

    def load_or_create(self) -> Identity:
        """Return the revealer's identity; a new one where none was made."""
        return Identity.load_or_create(self.folder, LABEL)

    def keep(self, epoch: int, secret: bytes) -> None:
        """Write an epoch's secret key; one of the same epoch that nobody saw is replaced."""
        fields: dict[str, JsonValue] = {"epoch": epoch, "secret": encode_bytes(secret)}
        replace_secret(self._path(epoch), write_document(KIND, fields))

    def destroy_before(self, epoch: int) -> None:
        """Overwrite and delete the secret keys of earlier epochs, of which no round is left."""
        for old in self.epochs:
            if old < epoch:
                destroy_secret(self._path(old))
