"""A disk of some hundred KiB for one command, in a mount namespace that only it has."""

from __future__ import annotations

import errno
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.commands import Command

_FILLER = ".filler"
_PAGE = 4096


class SmallDisk:
    """Puts a small file system in a folder's place, with what the folder holds.

    It takes `unshare`, which Debian has, and the right to a user namespace.

    Args:
        folder: seen as before by everybody but the command.
        kib: its size.
    """

    def __init__(self, folder: Path, kib: int) -> None:
        self._folder = folder
        self._keeper = 0
        place, aside = shlex.quote(str(folder)), shlex.quote(f"{folder}.aside")
        script = (
            f"set -e; mkdir -p {aside}; cp -a {place}/. {aside}; "
            f"mount -t tmpfs -o size={kib}k,mode=0700 tmpfs {place}; cp -a {aside}/. {place}; "
            'exec "$@"'
        )
        self.under: tuple[str, ...] = ("unshare", "-rm", "sh", "-c", script, "sh")
        """What a command is started under."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Have one disk for all commands of the block, whichever of them ends."""
        told = "echo there; exec sleep infinity"
        with subprocess.Popen(
            [*self.under, "sh", "-c", told], stdout=subprocess.PIPE, text=True
        ) as keeper:
            try:
                assert keeper.stdout is not None and keeper.stdout.readline() == "there\n"
                self._keeper = keeper.pid
                self.under = (
                    "nsenter",
                    "-t",
                    f"{keeper.pid}",
                    "-U",
                    "-m",
                    "--preserve-credentials",
                )
                yield
            finally:
                keeper.kill()

    def seen_by(self, command: Command) -> Path:
        """Return the folder as the command sees it."""
        return Path(f"/proc/{self._keeper or command.process.pid}/root{self._folder}")

    def fill(self, command: Command, *, but: int = 0) -> None:
        """Leave no space but so many bytes, of whole pages."""
        with (self.seen_by(command) / _FILLER).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_PAGE))
            except OSError as error:
                assert error.errno == errno.ENOSPC
            file.truncate(file.tell() - but)

    def free(self, command: Command) -> None:
        """Make the space that there was."""
        (self.seen_by(command) / _FILLER).unlink()
