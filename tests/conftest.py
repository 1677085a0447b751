"""What holds for every test."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

# Before any test imports grpc.
import fedrec.wire  # noqa: F401

# What a conformance suite found wrong is shown as in any test.
pytest.register_assert_rewrite("conformance")

# A shell that starts the suite in the background ignores SIGINT for it and for all its children;
# the tests of Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Commands send the log to their own stderr, which is closed when a test is over."""
    yield
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()
