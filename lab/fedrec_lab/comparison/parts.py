"""Finished parts of a comparison on disk, so that an interrupted one goes on after them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedrec.durable import write_whole
from fedrec.errors import SettingsError, StorageError
from fedrec.formats import check_format, format_number
from fedrec_lab.comparison.measurement import Measurement

__all__ = ["Parts"]

_FORMAT = "fedrec comparison part"
_VERSION = 2
_MEASUREMENTS = TypeAdapter(tuple[Measurement, ...])


class Parts:
    """One file for each method, seed and group of protocols.

    Args:
        folder: of the run.
        identity: what must be the same for a part to be used again.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder / "parts"
        self._trainings = folder / "trainings"
        self._identity = identity

    def training_folder(self, name: str) -> Path:
        """Return where the part's training keeps its checkpoint; it may not exist."""
        return self._trainings / name

    def load(self, name: str) -> tuple[Measurement, ...] | None:
        """Return a finished part, or None.

        Raises:
            SettingsError: it belongs to other settings or other data.
            StorageError: it cannot be read.
            VersionMismatch: it has another format.
        """
        path = self._folder / f"{name}.json"
        try:
            record = json.loads(path.read_bytes())
            self._check(record, path)
            return _MEASUREMENTS.validate_python(record["measurements"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}.",
                remedy="Delete it; what it held is measured again.",
            ) from error

    def save(self, name: str, measurements: Sequence[Measurement]) -> None:
        """Write a part and drop the checkpoint of its training.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self._folder} cannot be made: {error}.", remedy="Name a writable folder."
            ) from error
        record = {
            "format": _FORMAT,
            "version": _VERSION,
            "identity": self._identity,
            "measurements": [asdict(measurement) for measurement in measurements],
        }
        content = json.dumps(record, indent=1).encode()
        write_whole(self._folder / f"{name}.json", content, private=False)
        shutil.rmtree(self._trainings / name, ignore_errors=True)
        if self._trainings.is_dir() and not any(self._trainings.iterdir()):
            self._trainings.rmdir()

    def _check(self, record: dict[str, Any], path: Path) -> None:
        if record["format"] != _FORMAT:
            raise ValueError(f"its format is {record['format']!r}, expected {_FORMAT!r}")
        found = format_number(record.get("version"))
        check_format(found, _VERSION, str(path), anew="start a new run")
        if record["identity"] != self._identity:
            raise SettingsError(
                f"{path} was measured with other settings, other data or another number of "
                "clients than these.",
                remedy="Resume with the run folder's own resolved.toml, or start a new run.",
            )
