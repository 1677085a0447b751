"""Logs on stderr that never stop what they tell about."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast


class SteadyStream:
    """A text stream whose reader may be gone and whose disk may be full.

    A line that cannot be written is lost; its writer goes on.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> int:
        """Write what can be written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what can be passed on."""
        with suppress(OSError):
            self._stream.flush()

    @property
    def buffer(self) -> SteadyStream:
        """What takes bytes in place of text."""
        return SteadyStream(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def log_to_stderr(level: int = logging.DEBUG, *, as_json: bool = False) -> None:
    """Send structured logs from a level on to stderr.

    Args:
        as_json: one JSON object a line: the event, its level, the time in UTC, and its fields.
    """
    import structlog

    stream = cast(TextIO, SteadyStream(sys.stderr))
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        processors=_json_processors() if as_json else _text_processors(),
    )


def _text_processors() -> list[Any]:
    """Return what makes a line of text; structlog's own traceback shows variables' values."""
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"),
            exception_formatter=structlog.dev.plain_traceback,
        ),
    ]


def _json_processors() -> list[Any]:
    """Return what makes a line of JSON; a traceback has no values of variables in it."""
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(sort_keys=True),
    ]


def logger_of(name: str) -> Any:
    """Return a structured logger; where nobody has said where logs go, they go to stderr.

    structlog itself would write to stdout, where a command's answer belongs.
    """
    import structlog

    if structlog.is_configured():
        return structlog.get_logger(name)
    stream = cast(TextIO, SteadyStream(sys.stderr))
    return structlog.wrap_logger(structlog.PrintLogger(stream), processors=_text_processors())
