"""What the coordinator of a demonstration could see: recorded and looked up, not claimed."""

from __future__ import annotations

from pathlib import Path

from fedrec.audit.wire import WireReport, audit_wire
from fedrec.config.loading import load_settings
from fedrec.demo.workspace import Workspace

__all__ = ["look_at_coordinator", "recording_of"]


def recording_of(workspace: Workspace) -> Path:
    """Return the folder into which a demonstration's coordinator records its traffic."""
    return workspace.folder / "recording"


def look_at_coordinator(workspace: Workspace) -> WireReport:
    """Audit what passed a coordinator and what lies in its folder, by all that the clients know.

    The recording is read once and left in the run's folder, for `fedrec audit wire`.

    Raises:
        FedrecError: when the recording, the folder or the keys cannot be read.
    """
    return audit_wire(
        load_settings(workspace.coordinator_settings),
        recording=recording_of(workspace),
        truth=[state.parent for state in workspace.client_states],
    )
