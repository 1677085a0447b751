"""What the coordinator of a demonstration could see: looked up in its own folder, not claimed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrec.demo.workspace import Workspace
from fedrec.errors import KeysError
from fedrec.identity.epoch import KeyEpoch
from fedrec.training.layout import protection_of

__all__ = ["Exposure", "look_at_coordinator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What was found on the coordinator's disk after the run.

    Attributes:
        context_bytes: length of the protection's context, the only cryptographic material.
        context_has_key: whether that context holds any key.
        update_files: updates of single clients that are still stored.
        aggregate_files, aggregate_bytes: published sums that are kept for late joiners.
        readable: whether those sums are readable without a client's key.
        private_matches: private vectors of clients found anywhere in the folder.
        knows_metrics: whether key holders stated the sums of the metrics to it.
    """

    context_bytes: int
    context_has_key: bool
    update_files: int
    aggregate_files: int
    aggregate_bytes: int
    readable: bool
    private_matches: int
    knows_metrics: bool

    def sentences(self) -> list[str]:
        """Return the findings for people to read."""
        metrics = "in the clear" if self.knows_metrics else "none"
        keys = "no secret key" if not self.context_has_key else "A SECRET KEY"
        content = "readable" if self.readable else "sealed under a key that only clients hold"
        return [
            f"Key material: a context of {self.context_bytes} bytes, which holds {keys}.",
            f"Stored: {self.aggregate_files} published sums, "
            f"{self.aggregate_bytes / 2**20:.1f} MiB, {content}; the sums of the metrics, "
            f"{metrics}; who took part and when.",
            f"Deleted: every client's update; {self.update_files} are left.",
            f"Private vectors of clients found on its disk: {self.private_matches}.",
        ]


def look_at_coordinator(workspace: Workspace) -> Exposure:
    """Search a coordinator's folder for what it must not have.

    Raises:
        KeysError: when its key bundle cannot be read.
    """
    epoch = KeyEpoch.load(workspace.epoch)
    protection = protection_of(workspace.plan, len(workspace.data.catalogue))
    try:
        protection.check_context(epoch.server_context)
        has_key = False
    except KeysError:
        has_key = True
    state = workspace.coordinator_state
    files = [path for path in state.rglob("*") if path.is_file()]
    updates = [path for path in files if {"updates", "partial"} & set(path.parts)]
    published = [path for path in files if "blobs" in path.parts]
    return Exposure(
        context_bytes=len(epoch.server_context),
        context_has_key=has_key,
        update_files=len(updates),
        aggregate_files=len(published),
        aggregate_bytes=sum(path.stat().st_size for path in published),
        readable=not protection.needs_reveal,
        private_matches=_private_matches(workspace, files),
        knows_metrics=protection.chosen.releases_metrics,
    )


def _private_matches(workspace: Workspace, files: list[Path]) -> int:
    """Count pieces of the clients' private vectors that stand in the coordinator's files."""
    contents = [path.read_bytes() for path in files]
    found = 0
    for folder in workspace.client_states:
        for path in folder.rglob("*private*"):
            raw = path.read_bytes() if path.is_file() else b""
            pieces = [raw[at : at + 32] for at in range(len(raw) // 2, len(raw) - 32, 4096)]
            found += sum(any(piece in content for content in contents) for piece in pieces)
    return found
