"""How often this client let an approximate model out, kept on disk.

A model holds the sums of every key epoch that its run went through, so that each release says
something about all their keys, and a budget that began anew with the next epoch would be exceeded
for the first key. So there is one budget for a federation, which never begins anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedrec.errors import RefusedError, StorageError
from fedrec.ids import RoundId
from fedrec_client.durable import append_durably

__all__ = ["MOST_EXPORTS", "RELEASES_FILE", "charge_release"]

RELEASES_FILE = "releases.jsonl"
MOST_EXPORTS = 4
"""Flooded exports that a member may make in a federation; the noise is wide enough for these."""


def charge_release(folder: Path, *, federation: str, epoch: int, version: RoundId) -> int:
    """Note a release before it happens, and return how many there are now.

    A line is on disk before it is counted, so that neither a crash nor two commands at once let
    more out than noted.

    Args:
        epoch: the present one, for whoever reads the file; it is charged like those before.

    Raises:
        RefusedError: the budget is spent; nothing may be released.
        StorageError: the record cannot be read or written.
    """
    if _count(folder, federation) >= MOST_EXPORTS:
        raise _spent(federation)
    line = {"federation": federation, "epoch": epoch, "version": version}
    append_durably(folder / RELEASES_FILE, json.dumps(line, separators=(",", ":")))
    used = _count(folder, federation)
    if used > MOST_EXPORTS:
        raise _spent(federation)
    return used


def _spent(federation: str) -> RefusedError:
    return RefusedError(
        f"This client released {MOST_EXPORTS} flooded models of the federation {federation!r}, "
        "which is as many as the noise is made for; new keys do not change that, since the model "
        "holds the sums made under the earlier ones.",
        remedy="Use a model that was exported before.",
    )


def _count(folder: Path, federation: str) -> int:
    path = folder / RELEASES_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        releases = [(each["federation"], each["epoch"]) for each in found]
        return sum(name == federation for name, _ in releases)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path} cannot be read: {error}. Nothing is released while nobody knows what was.",
            remedy="Restore the state folder from a backup.",
        ) from error
