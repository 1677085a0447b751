"""A disk that is full at any write that a test wants, in this process and without a file system."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

REFUSALS = 2
FAR = 1 << 30


class Disk:
    """The disk of one folder, which fills at some writes.

    Args:
        folder: whose writes are refused.
        gaps: how many writes succeed each time before the disk is full.
        refusals: so many writes fail before there is space again.
    """

    def __init__(self, folder: Path, gaps: Iterable[int], *, refusals: int = REFUSALS) -> None:
        self._folder, self._gaps, self._refusals = f"{folder}/", iter(gaps), refusals
        self._lock = threading.Lock()
        self._good, self._left = next(self._gaps), 0
        self.writes = 0
        self.refused: Counter[str] = Counter()

    def check(self, what: str, path: str) -> bool:
        """Tell whether a write is refused, and count it."""
        if not path.startswith(self._folder):
            return False
        with self._lock:
            if not self._left and not self._good:
                self._left, self._good = self._refusals, next(self._gaps, FAR)
            refused = self._left > 0
            self._left, self._good = self._left - refused, self._good - (not refused)
            self.writes += 1
            self.refused[what] += refused
            return refused

    def free(self) -> None:
        """Make space."""
        self._left, self._good = 0, FAR

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand between this process and the disk."""

        def refusing(name: str, path_of: Callable[..., str]) -> None:
            real = getattr(os, name)

            def call(*given: Any, **named: Any) -> Any:
                if self.check(name, path_of(*given)):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real(*given, **named)

            patch.setattr(os, name, call)

        def created(path: Any, flags: int, *_: Any) -> str:
            return os.fsdecode(path) if flags & os.O_CREAT else ""

        def opened(handle: int, *_: Any) -> str:
            return os.readlink(f"/proc/self/fd/{handle}")

        refusing("open", created)
        refusing("replace", lambda _, target: os.fsdecode(target))
        for name in ("write", "pwrite", "fsync"):
            refusing(name, opened)
        connect = sqlite3.connect

        def connected(database: Any, *given: Any, **named: Any) -> sqlite3.Connection:
            path = os.fsdecode(database)

            class Connection(sqlite3.Connection):
                def execute(rows, sql: str, *values: Any) -> sqlite3.Cursor:
                    if sql in ("BEGIN IMMEDIATE", "COMMIT") and self.check(sql, path):
                        error = sqlite3.OperationalError("database or disk is full")
                        error.sqlite_errorcode = sqlite3.SQLITE_FULL
                        raise error
                    return super().execute(sql, *values)

            return connect(database, *given, **named, factory=Connection)

        patch.setattr(sqlite3, "connect", connected)
