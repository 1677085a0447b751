"""Child processes that end with their parent, however it ended.

A thread of the child looks once a second whether its parent is still the process that started it.
That works on Linux and macOS alike, also where the parent was killed. Linux's PR_SET_PDEATHSIG
would also fire when only the thread ended that had started the child.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable

_SECONDS_BETWEEN_LOOKS = 1.0
_GRACE_SECONDS = 5.0


def child_command(module: str, *arguments: str) -> list[str]:
    """Return a command that does what `python -m MODULE ARGUMENTS` does, as long as this lives.

    Without its parent the child is asked to stop by SIGTERM, and ends 5 seconds later at the
    latest.
    """
    watched = [sys.executable, "-P", "-m", "fedrec.child_process", str(os.getpid())]
    return [*watched, module, *arguments]


def module_search_path() -> str:
    """Return where this process finds modules, as PYTHONPATH of a child."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def end_with_parent(parent: int, then: Callable[[], object]) -> None:
    """Call a function, which ends this process, as soon as its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        then()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def main() -> None:
    """Run a module as `child_command` says."""
    parent, module, *arguments = sys.argv[1:]
    end_with_parent(int(parent), _stop)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
