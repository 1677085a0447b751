"""What the coordinator of a demonstration could see: recorded and looked up, not claimed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedrec.audit.wire import WireReport, audit_wire
from fedrec.config.loading import load_settings
from fedrec.demo.workspace import Workspace

__all__ = ["AUDIT_NAME", "forget_recording", "look_at_coordinator", "recording_of"]

AUDIT_NAME = "wire-audit.json"


def recording_of(workspace: Workspace) -> Path:
    """Return the folder into which a demonstration's coordinator records its traffic."""
    return workspace.folder / "recording"


def look_at_coordinator(workspace: Workspace) -> WireReport:
    """Audit what passed a coordinator and what lies in its folder, by all that the clients know.

    Everything that was found is kept in the run's folder, field by field, as `AUDIT_NAME`.

    Raises:
        FedrecError: when the recording, the folder or the keys cannot be read.
    """
    report = audit_wire(
        load_settings(workspace.coordinator_settings),
        recording=recording_of(workspace),
        truth=[state.parent for state in workspace.client_states],
    )
    text = json.dumps(report.to_json(), indent=2) + "\n"
    (workspace.folder / AUDIT_NAME).write_text(text, encoding="utf-8")
    return report


def forget_recording(workspace: Workspace) -> int:
    """Delete what was recorded, which nobody needs after the audit; return its bytes."""
    folder = recording_of(workspace)
    n_bytes = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return n_bytes
