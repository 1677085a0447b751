"""Standard streams of a command: closed, on a full disk, or without their reader.

A command ends when its stdout can't be written, as scripts expect. When its stderr can't be, it
goes on, and its messages are lost.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from fedrec.errors import OutputLost
from fedrec.telemetry import SteadyStream


class _Output:
    """Standard output, as text or bytes.

    Raises:
        OutputLost: something cannot be written.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> int:
        """Write to the stream."""
        with _told_if_lost(self._stream):
            return int(self._stream.write(text))

    def flush(self) -> None:
        """Pass on what was written."""
        with _told_if_lost(self._stream):
            self._stream.flush()

    @property
    def buffer(self) -> _Output:
        """What takes bytes in place of text."""
        return _Output(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def own_streams() -> Iterator[None]:
    """Let a command print to streams that know what to do when they fail."""
    before = sys.stdout, sys.stderr
    _fill_closed()
    errors = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 (the process's own)
    sys.stdout, sys.stderr = cast(TextIO, _Output(sys.stdout)), cast(TextIO, SteadyStream(errors))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in filter(None, before):
            _forget_unwritten(stream)


def _fill_closed() -> None:
    """Keep the numbers of closed streams from the files that are opened next."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def _told_if_lost(stream: Any) -> Iterator[None]:
    if stream is None:
        raise OutputLost("Standard output is closed. Redirect it, as in >/dev/null.")
    try:
        yield
    except OSError as error:
        lost = OutputLost(f"Standard output cannot be written: {error.strerror or error}.")
        lost.reader_left = error.errno == errno.EPIPE
        raise lost from error


def _forget_unwritten(stream: TextIO) -> None:
    """Let the interpreter's last flush succeed where this one fails."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
