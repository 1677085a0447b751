"""Child processes that end with their parent, and the signals that ask a process to stop.

A thread of the child looks once a second whether its parent is still the process that started it.
That works on Linux and macOS alike, also where the parent was killed. Linux's PR_SET_PDEATHSIG
would also fire when only the thread ended that had started the child. Signals: Ctrl-C, what `kill`
sends, and a terminal that closed.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SECONDS_BETWEEN_LOOKS = 1.0
_GRACE_SECONDS = 5.0

_STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

_SECONDS_UNTIL_AGAIN = 0.05


def child_command(module: str, *arguments: str) -> list[str]:
    """Return a command that does what `python -m MODULE ARGUMENTS` does, as long as this lives.

    Without its parent the child is asked to stop by SIGTERM, and ends 5 seconds later at the
    latest.
    """
    watched = [sys.executable, "-P", "-m", "fedrec.processes", str(os.getpid())]
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


def heeded_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop.

    What it was started to ignore isn't one of them, as SIGHUP under `nohup`. SIGINT always is: a
    shell has what it starts in the background ignore it.
    """
    return tuple(
        number
        for number in _STOP_SIGNALS
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    )


@contextmanager
def on_stop_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have a handler called for each signal that asks to stop; only in the main thread."""
    with _handled(heeded_signals(), handler):
        yield


@contextmanager
def interrupted_by_any() -> Iterator[None]:
    """Let every signal that asks to stop raise KeyboardInterrupt, as Ctrl-C does by itself."""
    others = tuple(number for number in heeded_signals() if number != signal.SIGINT)
    with _handled(others, signal.default_int_handler), _raised_again_where_lost():
        yield


def ignore_stop_signals() -> None:
    """Leave it to the parent what they mean: a terminal or a service manager tells all of them."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _raised_again_where_lost() -> Iterator[None]:
    """Repeat an interrupt that came in a callback of C, as a compiler's, where it is lost."""
    before = sys.unraisablehook

    def tell(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            again = (os.getpid(), signal.SIGINT)
            threading.Timer(_SECONDS_UNTIL_AGAIN, os.kill, again).start()
        else:
            before(lost)

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


if __name__ == "__main__":
    main()
