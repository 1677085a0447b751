"""Encrypted backups of an authority's folder in one file, and their restoration.

The key is derived from a passphrase with scrypt (RFC 7914, 128 MiB of memory for each guess). The
content is encrypted with AES-256-GCM. Without the passphrase it cannot be read.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fedrec.errors import KeysError, StorageError
from fedrec.follower.database import OLDER_FILE, STATE_FILE, check_older, image_of
from fedrec.identity.authority import AUTHORITY_FILE, AUTHORITY_FOLDER, EPOCH_FILE, ROSTERS_FOLDER
from fedrec.identity.document import (
    Document,
    JsonValue,
    encode_bytes,
    read_public,
    replace_secret,
    write_document,
    write_public,
    write_secret,
)
from fedrec.identity.epoch_secrets import REVEALER_FOLDER
from fedrec.ids import canonical
from fedrec_authority.folder.authority_folder import (
    AUTHORITY_PUBLIC_FILE,
    MEMBERSHIP_FILE,
    AuthorityFolder,
)
from fedrec_authority.folder.folder_changes import changing
from fedrec_authority.folder.opened_sums import OpeningState
from fedrec_authority.folder.recovery import STATE_FOLDER, read_state
from fedrec_authority.members.invitations import INVITATIONS_FILE

KIND = "fedrec authority backup"
_CONTENT = "fedrec authority folder"
FEWEST_PASSPHRASE_CHARS = 12
MAX_BYTES = 512 << 20
SALT_BYTES = 16
NONCE_BYTES = 12
KEY_BYTES = 32
COST = 2**17
BLOCK_SIZE = 8
LARGEST_COST = 2**20
"""A limit of 1 GiB on the memory that a damaged or forged file can take before it is refused."""
SECRETS = (f"{AUTHORITY_FOLDER}/{AUTHORITY_FILE}", f"{AUTHORITY_FOLDER}/{MEMBERSHIP_FILE}")
"""Written last, with the key first, so that a folder with both is complete."""
OPERATOR = ("operator.pem", "operator.crt")
"""The credentials whose certificate the coordinator knows."""
RUN = f"{AUTHORITY_FOLDER}/{REVEALER_FOLDER}/{STATE_FOLDER}/"
"""The revealer's state of its run."""
_STORED = re.compile(r"(shared|cell-counts)-[0-9a-f]{32}\.bin")
_TRIES = 20
INVITED = f"{AUTHORITY_FOLDER}/{INVITATIONS_FILE}"


def back_up(folder: AuthorityFolder, path: Path, passphrase: str) -> int:
    """Write an encrypted copy of the keys, the members, the rosters and the operator's key.

    If the authority opens sums, it includes the model, the last statement and the privacy cost, but
    no secret key of an epoch or of a revealer. It may run in parallel with other commands.

    It does not include the newest epoch's bundle: backups are kept for long, and with a stolen
    member's key the bundle would reveal the secrets of an old epoch. A restored authority makes a
    new epoch anyway.

    Args:
        path: the file, which must not exist.

    Returns:
        The number of the last epoch.

    Raises:
        KeysError: the folder holds no authority, the file exists, or the passphrase is short.
    """
    if len(passphrase) < FEWEST_PASSPHRASE_CHARS:
        raise KeysError(
            f"The passphrase has {len(passphrase)} characters, expected at least "
            f"{FEWEST_PASSPHRASE_CHARS}.",
            remedy="Choose several random words.",
        )
    # All files as of one moment. Otherwise the members might not match the last roster.
    with changing(folder):
        entries, last_epoch = [*_files(folder), *_of_run(folder)], folder.last_epoch
    content = write_document(_CONTENT, {"files": entries})
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    key = _key(passphrase, salt, COST, BLOCK_SIZE)
    fields: dict[str, JsonValue] = {
        "cost": COST,
        "block_size": BLOCK_SIZE,
        "salt": encode_bytes(salt),
        "nonce": encode_bytes(nonce),
        "sealed": encode_bytes(AESGCM(key).encrypt(nonce, content, _bound(COST, BLOCK_SIZE, salt))),
    }
    write_secret(path, write_document(KIND, fields))
    return last_epoch


def restore(path: Path, folder: AuthorityFolder, passphrase: str) -> int:
    """Restore a backup into a folder without an authority.

    After an interruption, call it again on the same folder.

    Returns:
        The number of the last epoch, whose bundle is not restored.

    Raises:
        KeysError: the folder holds a complete authority, the file is damaged, or the passphrase is
            wrong.
        FolderInUse: another process is restoring into it.
    """
    _check_free(folder)
    files = _opened(path, passphrase)
    key = SECRETS[0]
    with changing(folder, new=True) as keys:
        _check_free(folder)
        if (folder.path / key).exists() and folder.authority.public_key != _public(files):
            raise KeysError(
                f"{folder.path} holds the key of another authority.",
                remedy="Choose an empty folder with --into.",
            )
        for name, content in files.items():
            if name not in (*SECRETS, EPOCH_FILE):
                secret = name in (OPERATOR[0], INVITED) or name.startswith(RUN)
                write = replace_secret if secret else write_public
                write(folder.path / name, content)
        # Their holders may have been admitted and removed since. The coordinator still has their
        # applications, which must not admit them again.
        keys.invitations.confirm_unused()
        if not (folder.path / key).exists():
            write_secret(folder.path / key, files[key])
        replace_secret(folder.path / SECRETS[1], files[SECRETS[1]])
        return folder.last_epoch


def _check_free(folder: AuthorityFolder) -> None:
    if all((folder.path / name).exists() for name in SECRETS):
        raise KeysError(
            f"{folder.path} already holds an authority.",
            remedy="Choose an empty folder with --into.",
        )


def _files(folder: AuthorityFolder) -> list[JsonValue]:
    """Return the files that form the authority itself."""
    rosters = folder.private / ROSTERS_FOLDER
    names = [*SECRETS, AUTHORITY_PUBLIC_FILE, *OPERATOR, INVITED]
    names += [f"{AUTHORITY_FOLDER}/{ROSTERS_FOLDER}/{found.name}" for found in rosters.glob("*")]
    there = [(name, folder.path / name) for name in names if (folder.path / name).exists()]
    return [
        {
            "name": name,
            "content": encode_bytes(
                read_public(path, max_bytes=MAX_BYTES, remedy="Restore a backup.")
            ),
        }
        for name, path in there
    ]


def _of_run(folder: AuthorityFolder) -> list[JsonValue]:
    """Return the files of the run for a restored authority: the model and the last statement."""
    for left in reversed(range(_TRIES)):
        store = read_state(folder)
        if store is None:
            return []
        state = store.state
        kept = OpeningState(
            pin=state.pin,
            epoch=state.epoch,
            version=state.version,
            shared=state.shared,
            statement=state.statement,
            head=state.head,
            paused=state.paused,
            cell_counts=state.cell_counts,
            left_runs=state.left_runs,
        )
        try:
            named = [ref for ref in (state.shared, state.cell_counts) if ref is not None]
            files = [(ref.name, store.read(ref)) for ref in named]
        except StorageError:
            # A running revealer moved on to the next round.
            if not left:
                raise
            continue
        # The state comes last, so that the files that it names are there.
        files.append((STATE_FILE, image_of({"run": kept.records()})))
        return [{"name": f"{RUN}{name}", "content": encode_bytes(raw)} for name, raw in files]
    return []


def _opened(path: Path, passphrase: str) -> dict[str, bytes]:
    raw = read_public(path, max_bytes=MAX_BYTES, remedy="Check the path.")
    document = Document.parse(raw, KIND, str(path))
    cost = document.integer("cost", minimum=2)
    block_size = document.integer("block_size", minimum=1)
    salt = document.raw("salt", length=SALT_BYTES)
    nonce = document.raw("nonce", length=NONCE_BYTES)
    sealed = document.raw("sealed")
    document.finish()
    if cost > LARGEST_COST or cost & (cost - 1) or block_size > BLOCK_SIZE:
        raise document.problem("asks for more memory than any backup needs")
    try:
        key = _key(passphrase, salt, cost, block_size)
        content = AESGCM(key).decrypt(nonce, sealed, _bound(cost, block_size, salt))
    except InvalidTag:
        raise KeysError(
            f"{path} does not open: the passphrase is wrong, or the file is damaged.",
            remedy="Check the passphrase, or try another copy of the file.",
        ) from None
    inside = Document.parse(content, _CONTENT, str(path))
    files = {entry.text("name"): entry.raw("content") for entry in inside.objects("files")}
    inside.finish()
    missing = [name for name in (*SECRETS, AUTHORITY_PUBLIC_FILE) if name not in files]
    check_older(files.get(f"{RUN}{OLDER_FILE}", b"").partition(b"\n")[0], f"The state in {path}")
    strange = [name for name in files if not _is_ours(name)]
    if missing or strange:
        raise inside.problem("is not a backup of an authority's folder")
    return files


def _is_ours(name: str) -> bool:
    """Return whether a file may be restored: inside the folder, with a known name."""
    if name in (*SECRETS, AUTHORITY_PUBLIC_FILE, EPOCH_FILE, *OPERATOR, INVITED):
        return True
    if name.startswith(RUN):
        file = name.removeprefix(RUN)
        return file == STATE_FILE or _STORED.fullmatch(file) is not None
    folder, _, file = name.rpartition("/")
    number, _, ending = file.partition(".")
    return (
        folder == f"{AUTHORITY_FOLDER}/{ROSTERS_FOLDER}" and number.isdecimal() and ending == "json"
    )


def _public(files: dict[str, bytes]) -> bytes:
    document = Document.parse(files[AUTHORITY_PUBLIC_FILE], "fedrec authority key", "The backup")
    return document.raw("public_key", length=32)


def _key(passphrase: str, salt: bytes, cost: int, block_size: int) -> bytes:
    return Scrypt(salt=salt, length=KEY_BYTES, n=cost, r=block_size, p=1).derive(
        passphrase.encode()
    )


def _bound(cost: int, block_size: int, salt: bytes) -> bytes:
    return canonical("fedrec authority backup v1", cost, block_size, salt)
