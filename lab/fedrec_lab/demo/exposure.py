"""What the coordinator of a demonstration could see: recorded and looked up, not claimed."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from rich.console import Console

from fedrec.settings.validation import load_settings
from fedrec_lab.audit.wire import WireReport, audit_wire
from fedrec_lab.demo.workspace import Workspace

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


def finish_recording(console: Console, workspace: Workspace, *, keep: bool) -> None:
    """Say where the audit's fields are, and leave the recording only where it is wanted."""
    folder = recording_of(workspace)
    console.print(f"\nField by field: {AUDIT_NAME} in the run's folder.")
    if not keep:
        mebibytes = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
        shutil.rmtree(folder)
        console.print(
            f"The recording, {mebibytes:.1f} MiB, was deleted; --keep-recording leaves it there."
        )
        return
    recording = shlex.quote(str(folder))
    own = shlex.quote(str(workspace.coordinator_settings))
    console.print("The recording is there, too; to look again:")
    console.print(f"  fedrec audit wire {own} --recording {recording}")
