"""Commands whose machine has another clock than everybody else's."""

from __future__ import annotations

from typing import Any

from debian import install

# libfaketime and clock_nanosleep do not go together, and Python sleeps by that.
_SLEEP = (
    "import select, time; time.sleep = lambda seconds: select.select([], [], [], seconds) and None"
)


def wrong_clock(offset: str) -> dict[str, Any]:
    """Return how a command is started for which it is earlier or later, as in "-1h" or "+15d".

    All of the process has that time of day, C's libraries and their handshakes too; it takes
    Debian's libfaketime. How long something takes is measured as ever.
    """
    install("faketime", "faketime")
    preloaded = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1"
    under = ("env", preloaded, f"FAKETIME={offset}", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    return {"under": under, "first": _SLEEP}
