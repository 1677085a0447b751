"""Child processes that end with their parent, and signals that ask a process to stop.

A thread of the child checks once a second whether its parent is still the process that started it.
That works on Linux and macOS, even if the parent was killed. Linux's PR_SET_PDEATHSIG would also
fire if only the parent's thread ended. The signals are Ctrl-C, the one that `kill` sends, and the
one from a terminal that closes.
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
    """Return a command like `python -m MODULE ARGUMENTS` that ends with this process.

    Without its parent the child gets SIGTERM and ends within 5 seconds.
    """
    watched = [sys.executable, "-P", "-m", "fedrec.processes", str(os.getpid())]
    return [*watched, module, *arguments]


def module_search_path() -> str:
    """Return this process's module search path, as PYTHONPATH for a child."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def end_with_parent(parent: int, then: Callable[[], object]) -> None:
    """Call a function that ends this process as soon as its parent is gone."""

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
    """Run a module as `child_command` describes."""
    parent, module, *arguments = sys.argv[1:]
    end_with_parent(int(parent), _stop)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop.

    Signals that the process was started to ignore are left out, such as SIGHUP under `nohup`.
    SIGINT is always included, because a shell makes background jobs ignore it.
    """
    return tuple(
        number
        for number in _STOP_SIGNALS
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    )


@contextmanager
def on_stop_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call a handler for each signal that asks to stop. Use it in the main thread only."""
    with _handled(handled_signals(), handler):
        yield


@contextmanager
def interrupted_by_any() -> Iterator[None]:
    """Make every signal that asks to stop raise KeyboardInterrupt, as Ctrl-C does."""
    others = tuple(number for number in handled_signals() if number != signal.SIGINT)
    with _handled(others, signal.default_int_handler), _repeat_lost_interrupt():
        yield


def ignore_stop_signals() -> None:
    """Ignore stop signals, which a terminal or service manager also sends to the parent."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _repeat_lost_interrupt() -> Iterator[None]:
    """Raise an interrupt again if a callback from C, such as a compiler's, lost it."""
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
