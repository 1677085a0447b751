"""SIGTERM and SIGHUP mean what Ctrl-C means, unless a process was started to ignore them."""

from __future__ import annotations

import ctypes
import signal
import threading
import time

import pytest

from fedrec.processes import handled_signals, interrupted_by_any, on_stop_signals

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", ALL)
def test_each_interrupts(number):
    before = [signal.getsignal(each) for each in ALL]
    with pytest.raises(KeyboardInterrupt), interrupted_by_any():
        signal.raise_signal(number)
    assert [signal.getsignal(each) for each in ALL] == before


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert handled_signals() == (signal.SIGINT, signal.SIGTERM)
        with interrupted_by_any(), on_stop_signals(pytest.fail):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_in_a_callback_of_c_is_not_lost():
    """A compiler calls back into Python, where an exception is only printed."""

    def callback() -> None:
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), interrupted_by_any():
        ctypes.CFUNCTYPE(None)(callback)()
        for _ in range(500):
            time.sleep(0.01)


def test_elsewhere_than_in_the_main_thread_nothing_changes():
    seen: list[object] = []

    def look() -> None:
        with on_stop_signals(pytest.fail):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
