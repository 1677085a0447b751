"""Choose where a party's users train: on this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from pathlib import Path

from fedrec.extras import require
from fedrec.settings.schema import ClientSettings
from fedrec.training.executors.executor import Executor
from fedrec.training.executors.processes import executor_of


def engine_of(client: ClientSettings, *, folder: Path | None = None) -> Executor:
    """Return the executor that `client.engine` asks for.

    Args:
        folder: the folder of local workers' shared files, or None for the system's temporary one.

    Raises:
        SettingsError: Ray isn't installed.
    """
    if client.engine == "local":
        return executor_of(client.workers, threads=client.threads, folder=folder)
    require("ray")
    # Ray reads these when it is imported.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
    from fedrec.cluster.ray_executor import RayExecutor

    n_workers = 0 if client.workers == "auto" else client.workers
    return RayExecutor(client.ray_address, n_workers)
