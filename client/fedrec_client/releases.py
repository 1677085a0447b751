"""How often this client let an approximate model out under the present key, kept on disk."""

from __future__ import annotations

import json
from pathlib import Path

from fedrec.errors import RefusedError, StorageError
from fedrec.ids import RoundId
from fedrec_client.durable import append_durably

__all__ = ["EXPORTS_PER_EPOCH", "RELEASES_FILE", "charge_release"]

RELEASES_FILE = "releases.jsonl"
EXPORTS_PER_EPOCH = 4
"""Flooded exports that a member may make in one key epoch; the noise is wide enough for these."""


def charge_release(folder: Path, *, federation: str, epoch: int, version: RoundId) -> int:
    """Note a release before it happens, and return how many there are now in this epoch.

    A line is on disk before it is counted, so that neither a crash nor two commands at once let
    more out than noted.

    Raises:
        RefusedError: the epoch's budget is spent; nothing may be released.
        StorageError: the record cannot be read or written.
    """
    if _count(folder, federation, epoch) >= EXPORTS_PER_EPOCH:
        raise _spent(epoch)
    line = {"federation": federation, "epoch": epoch, "version": version}
    append_durably(folder / RELEASES_FILE, json.dumps(line, separators=(",", ":")))
    used = _count(folder, federation, epoch)
    if used > EXPORTS_PER_EPOCH:
        raise _spent(epoch)
    return used


def _spent(epoch: int) -> RefusedError:
    return RefusedError(
        f"This client released {EXPORTS_PER_EPOCH} flooded models in key epoch {epoch}, which is "
        "as many as the noise is made for.",
        remedy="Use a model that was exported before, or wait for the next key epoch.",
    )


def _count(folder: Path, federation: str, epoch: int) -> int:
    path = folder / RELEASES_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        return sum(each["federation"] == federation and each["epoch"] == epoch for each in found)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path} cannot be read: {error}. Nothing is released while nobody knows what was.",
            remedy="Restore the state folder from a backup.",
        ) from error
