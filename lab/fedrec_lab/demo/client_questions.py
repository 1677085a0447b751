"""What a demonstration asks its clients after the run, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.child_process import child_command
from fedrec.errors import TrainingError
from fedrec.model.state import SharedState
from fedrec.recommender import MODEL_NAME, ModelFile
from fedrec_lab.demo.comparison import Which
from fedrec_lab.demo.workspace import Workspace

__all__ = ["ask_client", "exported_models", "recommend_to_first_user"]


def exported_models(workspace: Workspace) -> Mapping[Which, SharedState]:
    """Let the first client export its models; the best one stays in the run's folder."""
    settings = workspace.client_settings[0]
    ask_client(settings, "export-model", "--to", str(workspace.folder))
    with tempfile.TemporaryDirectory() as folder:
        ask_client(settings, "export-model", "--latest", "--to", folder)
        latest = ModelFile.load(Path(folder) / MODEL_NAME)
    best = ModelFile.load(workspace.folder / MODEL_NAME)
    return {"best": best.shared, "latest": latest.shared}


def recommend_to_first_user(workspace: Workspace) -> tuple[str, dict[str, Any]]:
    """Let the first client recommend to its first user, in its own process."""
    settings = workspace.client_settings[0]
    lines = (settings.parent / "interactions.csv").read_text(encoding="utf-8").splitlines()
    user = lines[1].split(",")[0]
    return user, ask_client(settings, "recommend", "--user", user, "-n", "10")


def ask_client(settings: Path, verb: str, *arguments: str) -> dict[str, Any]:
    """Return what `fedrec client VERB` prints, run as a process of its own like any client's."""
    done = subprocess.run(
        child_command("fedrec", "client", verb, str(settings), *arguments, "--json"),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise TrainingError(
            f"`fedrec client {verb} {settings}` ended with exit code {done.returncode}:\n"
            f"{done.stdout}{done.stderr}".rstrip()
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
