"""The key authority as the process that operators start, and what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from integration.support.bench import Bench
from world.clock import DEADLINE_SECONDS

_SLOW = 3 * DEADLINE_SECONDS
"""Starting it imports what a client imports, beside everything else that runs."""


class AuthorityProcess:
    """`fedrec keys authority run`, which opens sums where the plan says so."""

    def __init__(self, bench: Bench, address: str) -> None:
        workspace = bench.workspace
        keys = workspace.folder / "keys"
        options: list[str | Path] = [
            *("--into", keys, "--every-seconds", "0.2", "--json"),
        ]
        command = [sys.executable, "-m", "fedrec", "keys", "authority", "run", address]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        self.told: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, name: str, round_id: int | None = None) -> dict[str, Any]:
        """Wait for an event and return it."""

        def found() -> dict[str, Any] | None:
            fits = (e for e in self.told if e["name"] == name and round_id in (None, e["round"]))
            return next(fits, None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), timeout=_SLOW)
            event = found()
        assert event, f"no {name} of round {round_id}: {self.told}"
        return event

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def kill(self) -> None:
        """End it as a power cut does."""
        self._process.kill()
        self._process.wait()
        self._reader.join(DEADLINE_SECONDS)

    def close(self) -> None:
        """End the process if it still runs."""
        self.kill()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.told.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()
