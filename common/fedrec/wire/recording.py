"""Files of recorded calls: every message as its original bytes, in one frame each.

A file begins with `MAGIC`. A frame consists of a head of fixed size, the method's name and the
message. The head has both lengths, so a truncated file is readable up to its end. A frame of kind
``limit`` marks that nothing was recorded after it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from fedrec.durable import make_private, unwritten
from fedrec.errors import StorageError

Kind = Literal["request", "response", "limit"]
"""A request, a response, or the end of the recording."""

MAGIC = b"fedrec wire recording 1\n"
SUFFIX = ".frames"
MAX_RECORDED_BYTES = 64 * 1024 * 1024
"""gRPC's limit is 4 MiB here. A file with a longer frame is damaged."""

_HEAD = struct.Struct("<IHBQd")
_KINDS: tuple[Kind, ...] = ("request", "response", "limit")
_MAX_METHOD_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message of a call.

    Attributes:
        call: the call's number within the file, from 1.
        method: gRPC's name of the method, such as `/package.Service/Method`.
        unix_seconds: when the coordinator read or wrote it.
    """

    call: int
    method: str
    kind: Kind
    unix_seconds: float
    message: bytes


class FrameWriter:
    """Appends frames to a new file that only its owner can read.

    Args:
        path: a file that does not exist.
        max_bytes: the file's size limit. The frame that would exceed it is left out, and so is
            everything after it.

    Raises:
        SettingsError: the file cannot be created there.
        StorageError: the disk refuses the write.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.path = path
        self._left = max_bytes - len(MAGIC) - _HEAD.size
        try:
            make_private(path.parent)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._file: BinaryIO | None = os.fdopen(handle, "wb")
            self._file.write(MAGIC)
            self._file.flush()
        except OSError as error:
            raise unwritten(path, error) from error

    @property
    def is_open(self) -> bool:
        """Return whether frames are still accepted."""
        return self._file is not None

    def append(self, frame: Frame) -> bool:
        """Write a frame. Return False if it is left out because the file is full or closed.

        Raises:
            OSError: the disk refuses the write.
        """
        if self._file is None:
            return False
        method = frame.method.encode()[:_MAX_METHOD_BYTES]
        needed = _HEAD.size + len(method) + len(frame.message)
        if needed > self._left or len(frame.message) > MAX_RECORDED_BYTES:
            self._file.write(_HEAD.pack(0, 0, _KINDS.index("limit"), 0, frame.unix_seconds))
            self.close()
            return False
        head = _HEAD.pack(
            len(frame.message), len(method), _KINDS.index(frame.kind), frame.call,
            frame.unix_seconds,
        )  # fmt: skip
        self._file.write(head + method + frame.message)
        # If the coordinator is killed, only the frame that it was writing is lost.
        self._file.flush()
        self._left -= needed
        return True

    def close(self) -> None:
        """Write the buffered frames, and accept no more."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class FrameReader:
    """Reads a file's frames in order, as far as they are whole.

    Attributes:
        truncated: after reading, whether the file ends within a frame.
        limited: after reading, whether recording ended at its size limit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.truncated = False
        self.limited = False

    def __iter__(self) -> Iterator[Frame]:
        """Yield every whole frame.

        Raises:
            StorageError: the file is not a recording, or is damaged before its end.
        """
        self.truncated = self.limited = False
        with self._path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise self._damaged("it does not begin like a recording of this version")
            while head := file.read(_HEAD.size):
                frame = self._frame(file, head)
                if frame is None:
                    return
                yield frame

    def _frame(self, file: BinaryIO, head: bytes) -> Frame | None:
        if len(head) < _HEAD.size:
            self.truncated = True
            return None
        length, method_bytes, kind, call, unix_seconds = _HEAD.unpack(head)
        if kind >= len(_KINDS) or method_bytes > _MAX_METHOD_BYTES or length > MAX_RECORDED_BYTES:
            raise self._damaged(f"a frame before byte {file.tell()} has an impossible head")
        if _KINDS[kind] == "limit":
            self.limited = True
            return None
        method, message = file.read(method_bytes), file.read(length)
        if len(method) + len(message) < method_bytes + length:
            self.truncated = True
            return None
        return Frame(
            call=call,
            method=method.decode("utf-8", "replace"),
            kind=_KINDS[kind],
            unix_seconds=unix_seconds,
            message=message,
        )

    def _damaged(self, why: str) -> StorageError:
        return StorageError(
            f"{self._path} cannot be read: {why}.",
            remedy="Record the run again with `fedrec coordinator run --record-wire FOLDER`.",
        )
