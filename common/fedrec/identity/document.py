"""Versioned JSON documents, parsed without trust, and files that are written atomically."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from fedrec.durable import WRITABLE, make_private, sync, unwritten, write_new, write_whole
from fedrec.errors import KeysError

JsonValue: TypeAlias = (
    "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | Mapping[str, JsonValue] | "
    "None"
)

MAX_TEXT_CHARS = 200
_NUMBERS = 2**63
VERSIONS = {
    "fedrec authority": 2,
    "fedrec authority key": 2,
    "fedrec authority membership": 2,
    "fedrec identity": 2,
    "fedrec key epoch": 2,
    "fedrec public identity": 2,
    "fedrec roster": 2,
}
"""Versions of the kinds that changed.

All others have version 1. Older versions are refused, not migrated.
"""

CHECKED = {"fedrec authority membership", "fedrec invitations", "fedrec applicants"}
"""Kinds that only their writer reads.

They carry their own digest, because no signature and no other party would notice a value that was
flipped on the disk.
"""
_DIGEST = "sha256"


def encode_bytes(raw: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(raw).decode("ascii")


def write_document(kind: str, fields: Mapping[str, JsonValue]) -> bytes:
    """Return the canonical JSON of a document: sorted keys, no spaces, ASCII.

    Raises:
        KeysError: a number doesn't fit 63 bits, so the document could not be read again.
    """
    if _has_large_number(fields):
        raise KeysError(
            f"A number for the {kind} does not fit 63 bits.",
            remedy="Use a smaller one. Nothing was changed.",
        )
    content = {"kind": kind, "version": VERSIONS.get(kind, 1), **fields}
    if kind in CHECKED:
        content[_DIGEST] = _digest_of(content)
    return _canonical(content)


def _has_large_number(value: object) -> bool:
    if isinstance(value, Mapping | list):
        inside = value.values() if isinstance(value, Mapping) else value
        return any(map(_has_large_number, inside))
    return isinstance(value, int) and value >= _NUMBERS


def _canonical(content: Mapping[str, JsonValue]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


def _digest_of(content: Mapping[str, JsonValue]) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


class Document:
    """A JSON object whose fields are taken out one at a time, each checked.

    Args:
        content: the object.
        name: its name in errors.
    """

    def __init__(self, content: JsonValue, name: str) -> None:
        self._name = name
        if not isinstance(content, dict):
            raise self.problem("is not a JSON object")
        self._content: dict[str, JsonValue] = dict(content)

    @classmethod
    def parse(cls, raw: bytes, kind: str, name: str) -> Document:
        """Read a document of a kind.

        Raises:
            KeysError: the document is not JSON, or of the wrong kind or version.
        """
        try:
            content = json.loads(raw, object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError):
            raise KeysError(
                f"{name} is damaged: it is not valid JSON.",
                remedy="Restore it from a backup, or ask its sender for it again.",
            ) from None
        document = cls(content, name)
        # Releases before the digest wrote none.
        if kind in CHECKED and _DIGEST in document._content:
            digest = document.text(_DIGEST)
            if digest != _digest_of(document._content):
                raise KeysError(
                    f"{name} is damaged: its content does not match its digest.",
                    remedy="Restore the authority's folder from a backup (`fedrec keys restore`).",
                )
        found = document.text("kind")
        if found != kind:
            raise document.problem(f"is a {found!r}, expected a {kind!r}")
        version = document.integer("version")
        wanted = VERSIONS.get(kind, 1)
        if version != wanted:
            raise KeysError(
                f"{name}: this {kind} has version {version}, expected {wanted}.",
                remedy="Install the fedrec version that wrote it, or provision the federation "
                "again: only each member can make and sign its newer keys.",
            )
        return document

    def text(self, field: str) -> str:
        """Take a printable string of at most 200 characters."""
        value = self._take(field)
        if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS or not value.isprintable():
            raise self.problem(
                f"field {field!r} is not a string of up to {MAX_TEXT_CHARS} characters"
            )
        return value

    def integer(self, field: str, *, minimum: int = 0) -> int:
        """Take an integer of at least `minimum` that fits 63 bits."""
        value = self._take(field)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value < _NUMBERS:
            raise self.problem(f"field {field!r} is not an integer of at least {minimum}")
        return value

    def raw(self, field: str, *, length: int | None = None) -> bytes:
        """Take base64-encoded bytes, of exactly `length` if it is given."""
        value = self._take(field)
        try:
            if not isinstance(value, str):
                raise ValueError
            decoded = base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            raise self.problem(f"field {field!r} is not base64") from None
        if length is not None and len(decoded) != length:
            raise self.problem(f"field {field!r} holds {len(decoded)} bytes, expected {length}")
        return decoded

    def json_text(self, field: str) -> str:
        """Take a string of any length, such as an enclosed document."""
        value = self._take(field)
        if not isinstance(value, str) or not _is_text(value):
            raise self.problem(f"field {field!r} is not a string")
        return value

    def objects(self, field: str) -> list[Document]:
        """Take a list of objects as documents."""
        value = self._take(field)
        if not isinstance(value, list):
            raise self.problem(f"field {field!r} is not a list")
        return [Document(item, f"{self._name}, {field}[{i}]") for i, item in enumerate(value)]

    def texts(self, field: str) -> list[str]:
        """Take a list of printable strings of at most 200 characters."""
        value = self._take(field)
        if not isinstance(value, list):
            raise self.problem(f"field {field!r} is not a list")
        return [Document({field: item}, self._name).text(field) for item in value]

    def mapping(self, field: str) -> Document:
        """Take a nested object."""
        return Document(self._take(field), f"{self._name}, {field}")

    def names(self) -> list[str]:
        """Return the names of the fields that have not been taken."""
        return sorted(self._content)

    def finish(self) -> None:
        """Refuse fields that have not been taken."""
        if self._content:
            raise self.problem(f"has unknown fields: {', '.join(sorted(self._content)[:5])}")

    def problem(self, what: str) -> KeysError:
        """Return an error that describes a problem with this document."""
        return KeysError(
            f"{self._name} {what}.",
            remedy="Restore it from a backup, or ask its sender for it again.",
        )

    def _take(self, field: str) -> JsonValue:
        if field not in self._content:
            raise self.problem(f"lacks the field {field!r}")
        return self._content.pop(field)


def _is_text(value: str) -> bool:
    """Return whether a string can be encoded: JSON can contain lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_repetition(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key appears twice")
    return content


MAX_SECRET_BYTES = 64 * 1024


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read, and refuse to replace an existing one.

    The content is durable under a temporary name before it appears under its final one.

    Raises:
        KeysError: the file exists.
        StorageError: the disk is full or failed.
        SettingsError: the folder is not writable.
    """
    remedy = "Keys are never overwritten. Load the file, or move it away and keep a copy."
    _create(path, content, private=True, remedy=remedy)


def read_secret(path: Path, *, remedy: str, max_bytes: int = MAX_SECRET_BYTES) -> bytes:
    """Return the content of a key file.

    Args:
        path: the file.
        remedy: the advice in the error if it does not exist.
        max_bytes: its largest allowed size.

    Raises:
        KeysError: the file is missing, too long, or readable by other users.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise KeysError(
                    f"{path} has mode {mode:04o}. A key file must be readable by its owner only.",
                    remedy=f"Run `chmod 600 {path}`. Make new keys if other users may have read "
                    "it.",
                )
            return _bounded(path, file.read(max_bytes + 1), max_bytes)
    except FileNotFoundError:
        raise KeysError(f"{path} does not exist.", remedy=remedy) from None
    except OSError as error:
        raise KeysError(
            f"{path} cannot be read: {error.strerror}.", remedy="Check its owner and its folder."
        ) from error


def replace_secret(path: Path, content: bytes) -> None:
    """Atomically replace a file that only its owner can read.

    This is for records that change. Keys are made once, by `write_secret`.

    Raises:
        StorageError: the disk is full or failed.
        SettingsError: the folder is not writable.
    """
    _replace(path, content, private=True)


def destroy_secret(path: Path) -> None:
    """Overwrite a file with zeros and delete it. A missing file is not an error.

    Disks and file systems that write elsewhere may keep the old blocks for a while.

    Raises:
        StorageError: the disk is full or failed.
        SettingsError: the folder is not writable.
    """
    try:
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        sync(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unwritten(path, error) from error


def write_public(path: Path, content: bytes) -> None:
    """Atomically replace a file that holds no secret.

    Raises:
        StorageError: the disk is full or failed.
        SettingsError: the folder is not writable.
    """
    _replace(path, content, private=False)


def write_new_public(path: Path, content: bytes) -> None:
    """Create a file that holds no secret, and refuse to replace an existing one.

    Raises:
        KeysError: the file exists.
        StorageError: the disk is full or failed.
        SettingsError: the folder is not writable.
    """
    remedy = "Choose another file name, or move this file away."
    _create(path, content, private=False, remedy=remedy)


def _create(path: Path, content: bytes, *, private: bool, remedy: str) -> None:
    try:
        make_private(path.parent)
        write_new(path, content, private=private)
    except FileExistsError:
        raise KeysError(f"{path} already exists.", remedy=remedy) from None
    except OSError as error:
        raise unwritten(path, error) from error


def _replace(path: Path, content: bytes, *, private: bool) -> None:
    try:
        make_private(path.parent)
    except OSError as error:
        raise unwritten(path, error) from error
    write_whole(path, content, private=private, remedy=WRITABLE)


def read_public(path: Path, *, max_bytes: int, remedy: str) -> bytes:
    """Return the content of a file that holds no secret.

    Raises:
        KeysError: the file is missing, unreadable or longer than `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            return _bounded(path, file.read(max_bytes + 1), max_bytes)
    except FileNotFoundError:
        raise KeysError(f"{path} does not exist.", remedy=remedy) from None
    except OSError as error:
        raise KeysError(f"{path} cannot be read: {error.strerror}.", remedy=remedy) from error


def _bounded(path: Path, content: bytes, max_bytes: int) -> bytes:
    if len(content) > max_bytes:
        raise KeysError(
            f"{path} is longer than {max_bytes} bytes.", remedy="Check that it is the right file."
        )
    return content
