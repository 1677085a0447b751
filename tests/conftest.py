"""What holds for every test."""

from __future__ import annotations

import signal

# A shell that starts the suite in the background ignores SIGINT for it and for all its children;
# the tests of Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
