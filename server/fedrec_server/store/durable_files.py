"""Files that are durable before they are acknowledged, and readable by several streams at once.

Failpoints are named places around every write, fsync, rename, commit and acknowledgement. Tests
pass a hook that kills the process or raises at one of them. In production the hook does nothing.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from fedrec.durable import FULL, DiskFull, begin_writing_back
from fedrec.errors import DamagedFile, StorageError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import CHUNK_BYTES, Blob, ByteChunk

Failpoint = Callable[[str], None]


def no_failpoint(name: str) -> None:
    """Do nothing."""


class OpenFile:
    """A file that stays readable until its last reader closes it, even if it is deleted meanwhile.

    Args:
        length: the length of its content in bytes.
        begin: where its content begins.

    Attributes:
        head: what is before its content.

    Raises:
        FileNotFoundError: the file is missing.
    """

    def __init__(self, path: Path, length: int, *, begin: int = 0) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._length, self._begin = length, begin
        self.head = os.pread(self._file, begin, 0)

    def offsets(self) -> Iterator[int]:
        """Yield the offset of each piece."""
        yield from range(0, self._length, CHUNK_BYTES)

    def chunk(self, offset: int) -> ByteChunk:
        """Return the piece that begins at an offset."""
        return ByteChunk(
            offset=offset, data=os.pread(self._file, CHUNK_BYTES, self._begin + offset)
        )


DIGEST_BYTES = 32
FOLDERS = ("partial", "updates", "blobs", "models", "snapshots", "epochs")
OF_ROUNDS = FOLDERS[:-1]
OURS = re.compile(r"[0-9]{8}-[0-9a-z-]+|tmp-[0-9a-f]{16}")
"""File names that the spool writes. It never deletes others."""
READ_BYTES = 1 << 20
FREE_SPACE = "Free disk space. The coordinator continues by itself."


class DurabilityLost(Exception):
    """A failed fsync or commit. The state on disk is unknown, so the process must end."""


def damaged(name: str) -> DamagedFile:
    """Return the error for a file that is missing or does not match its row."""
    return DamagedFile(
        f"The stored file {name} is missing or damaged.",
        remedy=f"Restore {name} of coordinator.state from a backup, and check the disk. Without a "
        "backup, and if the key authority opens sums, use `fedrec coordinator recover`.",
    )


def update_name(round_id: RoundId, client_id: ClientId) -> str:
    """Return the file name of one client's update."""
    return f"updates/{round_id:08d}-{client_id}"


def sum_name(round_id: RoundId) -> str:
    """Return the file name of a round's sum."""
    return f"blobs/{round_id:08d}-sum"


def sealed_name(round_id: RoundId, blob: Blob) -> str:
    """Return the file name of a sealed aggregate. Sealing it again gives another name."""
    return f"blobs/{round_id:08d}-{blob.digest.hex()}"


def own_models_name(round_id: RoundId, client_id: ClientId) -> str:
    """Return the first part of the names of the files that a client receives from a round.

    The rest is a hyphen and the place of a parameter among those that clients receive.
    """
    return f"models/{round_id:08d}-{client_id}"


def snapshot_name(round_id: RoundId, blob: Blob) -> str:
    """Return the file name of a snapshot."""
    return f"snapshots/{round_id:08d}-{blob.digest.hex()}"


def epoch_name(epoch: int, blob: Blob) -> str:
    """Return the file name of an epoch's public bundle."""
    return f"epochs/{epoch:08d}-{blob.digest.hex()}"


class Draft:
    """A file in `partial/` that grows until it is kept or discarded."""

    def __init__(self, spool: Spool, path: Path) -> None:
        self._spool = spool
        self._path = path
        with _writing("open"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A caller that hung up meanwhile never gets the file, and could not close it.
        self._closed = weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        self._synced = False

    def restart(self) -> None:
        """Discard what was written and start again."""
        self._synced = False
        os.ftruncate(self._file, 0)
        self.size = 0

    def append(self, data: bytes | memoryview) -> None:
        """Append `data` to the draft.

        Raises:
            StorageError: the disk is full. Earlier content stays.
        """
        self._spool.failpoint("draft.write")
        self._synced = False
        view = memoryview(data)
        try:
            with _writing("write"):
                written = 0
                while written < len(view):
                    written += os.pwrite(self._file, view[written:], self.size + written)
        except StorageError:
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        begin_writing_back(self._file, self.size, len(data))
        self.size += len(data)

    def sync(self) -> None:
        """Force the written content to disk."""
        if self._synced:
            return
        self._spool.failpoint("draft.fsync")
        _fsync(self._file)
        self._synced = True
        self._spool.failpoint("draft.synced")

    def read(self) -> bytes:
        """Return the whole content."""
        return os.pread(self._file, self.size, 0)

    def opened(self) -> BinaryIO:
        """Return the content as a separate file, which the caller closes."""
        found = os.fdopen(os.dup(self._file), "rb", buffering=0)
        found.seek(0)
        return found

    def keep(self, name: str) -> None:
        """Make the draft durable under `name`. It stays readable until closed."""
        self.sync()
        self._spool.keep(self._path, name)

    def discard(self) -> None:
        """Delete the draft."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and keep it, so that the upload can resume later."""
        self._closed()
        self._file = -1


class Spool:
    """The files of a state folder, with a reserve of free space.

    Args:
        folder: the state folder.
        reserve_bytes: free space that uploads must leave.
    """

    def __init__(
        self, folder: Path, *, reserve_bytes: int = 0, failpoint: Failpoint = no_failpoint
    ) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self.failpoint = failpoint
        for name in FOLDERS:
            (folder / name).mkdir(mode=0o700, exist_ok=True)

    def require_space(self, n_bytes: int) -> None:
        """Check that the disk has enough free space.

        Raises:
            StorageError: less than the reserve would be left.
        """
        free = shutil.disk_usage(self._folder).free
        if free < n_bytes + self._reserve_bytes:
            raise DiskFull(
                f"{free} bytes are free, but {n_bytes} are needed in addition to the reserve of "
                f"{self._reserve_bytes} (coordinator.reserve_bytes).",
                remedy=FREE_SPACE,
            )

    def upload(self, round_id: RoundId, client_id: ClientId, blob: Blob) -> Draft:
        """Open the resumable draft of a client's upload in a round.

        Raises:
            StorageError: there is no space for it in addition to the reserve.
        """
        self.require_space(blob.length)
        path = self._upload_path(round_id, client_id, blob.digest)
        for other in path.parent.glob(f"{round_id:08d}-{client_id}-*"):
            if other != path:
                other.unlink(missing_ok=True)
        draft = Draft(self, path)
        if draft.size > blob.length:
            draft.restart()
        return draft

    def uploaded(self, round_id: RoundId, client_id: ClientId, digest: bytes) -> int:
        """Return how many bytes of an interrupted upload are durable."""
        path = self._upload_path(round_id, client_id, digest)
        if not path.exists():
            return 0
        draft = Draft(self, path)
        try:
            draft.sync()
            return draft.size
        finally:
            draft.close()

    def draft(self) -> Draft:
        """Open a draft that cannot be resumed."""
        return Draft(self, self._folder / "partial" / f"tmp-{secrets.token_hex(8)}")

    def write(self, name: str, data: bytes) -> Blob:
        """Store `data` durably under `name` and return its length and digest."""
        draft = self.draft()
        try:
            draft.append(data)
            draft.keep(name)
        except StorageError:
            draft.discard()
            raise
        finally:
            draft.close()
        return Blob.of(data)

    def keep(self, draft: Path, name: str) -> None:
        """Rename a synced draft and make the rename durable."""
        target = self._folder / name
        self.failpoint("file.rename")
        with _writing("rename"):
            os.replace(draft, target)
        self.failpoint("folder.fsync")
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _fsync(folder)
        finally:
            os.close(folder)
        self.failpoint("folder.synced")

    def read(self, name: str, expected: Blob) -> bytes:
        """Return a whole file.

        Raises:
            DamagedFile: the file is missing or does not match its row.
        """
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError:
            raise damaged(name) from None
        if not expected.describes(data):
            raise damaged(name)
        return data

    def open(self, name: str, expected: Blob) -> OpenFile:
        """Open a file for reading in pieces, after comparing it with its row.

        Raises:
            DamagedFile: the file is missing or does not match its row.
        """
        try:
            found = OpenFile(self._folder / name, expected.length)
        except FileNotFoundError:
            raise damaged(name) from None
        self.check(name, expected)
        return found

    def check(self, name: str, expected: Blob) -> None:
        """Compare a file with its row, without holding it in memory.

        Raises:
            DamagedFile: the file is missing or does not match its row.
        """
        found = blake3()
        for piece in self.chunks(name):
            found.update(piece)
        if found.digest() != expected.digest:
            raise damaged(name)

    def last_round(self) -> RoundId:
        """Return the latest round with a file, or 0."""
        names = (path.name for kind in OF_ROUNDS for path in self._of(kind))
        numbers = (int(name[:8]) for name in names if name[0].isdigit())
        return RoundId(max(numbers, default=0))

    def counts(self) -> dict[str, int]:
        """Return the number of files in each folder."""
        return {kind: sum(1 for _ in self._of(kind)) for kind in FOLDERS}

    def _of(self, kind: str) -> Iterator[Path]:
        return (path for path in (self._folder / kind).iterdir() if OURS.fullmatch(path.name))

    def chunks(self, name: str, size: int = READ_BYTES) -> Iterator[bytes]:
        """Yield a file in pieces."""
        try:
            with (self._folder / name).open("rb") as file:
                while data := file.read(size):
                    yield data
        except FileNotFoundError:
            raise damaged(name) from None

    def open_described(self, name: str) -> tuple[Blob, OpenFile]:
        """Open a file that begins with the digest of its content, after comparing them.

        Raises:
            DamagedFile: the file is missing, or its content is not what was written.
        """
        path, found = self._folder / name, blake3()
        try:
            length = path.stat().st_size - DIGEST_BYTES
            file = OpenFile(path, length, begin=DIGEST_BYTES)
        except FileNotFoundError:
            raise damaged(name) from None
        for offset in file.offsets():
            found.update(file.chunk(offset).data)
        if found.digest() != file.head:
            raise damaged(name)
        return Blob(length=length, digest=file.head), file

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return (self._folder / name).exists()

    def delete_own_models(self, rounds: Container[int], clients: Container[ClientId]) -> None:
        """Delete what clients received from some rounds."""
        for path in self._of("models"):
            number, client_id, _ = path.name.split("-")
            if int(number) in rounds and ClientId(client_id) in clients:
                path.unlink(missing_ok=True)

    def empty_own_models(self, members: Container[ClientId]) -> None:
        """Empty what parties that are no members would have received.

        A party that is admitted again may still ask for it, and then keeps its own values.

        Raises:
            DiskFull: there is no space for the empty files.
        """
        for path in self._of("models"):
            client_id = ClientId(path.name.split("-")[1])
            if client_id not in members and path.stat().st_size > DIGEST_BYTES:
                self.write(f"models/{path.name}", blake3(b"").digest())

    def delete(self, name: str) -> None:
        """Delete a file that no row names."""
        self.failpoint("file.delete")
        (self._folder / name).unlink(missing_ok=True)

    def delete_partials(self, round_id: RoundId) -> None:
        """Delete the interrupted uploads of a finished round."""
        for path in (self._folder / "partial").glob(f"{round_id:08d}-*"):
            path.unlink(missing_ok=True)

    def sweep(self, named: frozenset[str], collecting: RoundId | None) -> int:
        """Delete files that no row names, and uploads of other rounds. Return their number."""
        swept = 0
        for folder in FOLDERS:
            for path in self._of(folder):
                name = f"{folder}/{path.name}"
                upload = collecting is not None and path.name.startswith(f"{collecting:08d}-")
                of_client = folder == "models" and name.rpartition("-")[0] in named
                if name in named or of_client or (folder == "partial" and upload):
                    continue
                path.unlink(missing_ok=True)
                swept += 1
        return swept

    def _upload_path(self, round_id: RoundId, client_id: ClientId, digest: bytes) -> Path:
        return self._folder / "partial" / f"{round_id:08d}-{client_id}-{digest.hex()}"


@contextmanager
def _writing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            message = f"The disk is full ({what}: {error.strerror})."
            raise DiskFull(message, remedy=FREE_SPACE) from error
        raise


def _fsync(file: int) -> None:
    try:
        os.fsync(file)
    except OSError as error:
        raise DurabilityLost(f"fsync failed: {error.strerror}") from error
