"""Writing a file whole or not at all, readable by everybody or by its owner only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fedrec.disk import unwritten

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes | Iterable[bytes], *, private: bool) -> None:
    """Put a file in place in one step; a crash leaves the old one or the new one.

    Args:
        data: the content, as a whole or in parts.
        private: give it mode 0600 from its first byte on; otherwise 0644.

    Raises:
        StorageError: it cannot be written; what was there before is intact.
    """
    try:
        # mkstemp opens with mode 0600.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            if not private:
                os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        remedy = "Check that the folder exists and is writable."
        raise unwritten(path, error, remedy) from error
