"""Logs on stderr that never stop the process."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast


class SteadyStream:
    """A text stream that ignores a reader that is gone and a full disk.

    Lines that cannot be written are lost, and the writer continues.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> int:
        """Write as much as possible."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush as much as possible."""
        with suppress(OSError):
            self._stream.flush()

    @property
    def buffer(self) -> SteadyStream:
        """The underlying stream of bytes."""
        return SteadyStream(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def log_to_stderr(level: int = logging.DEBUG, *, as_json: bool = False) -> None:
    """Send structured logs to stderr, from a level on.

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
    """Return processors for text, without structlog's traceback, which shows values."""
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
    """Return processors for lines of JSON, with tracebacks without values of variables."""
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(sort_keys=True),
    ]


def logger_of(name: str) -> Any:
    """Return a structured logger, which writes to stderr unless logs are configured.

    By default structlog writes to stdout, which is for a command's answer.
    """
    import structlog

    if structlog.is_configured():
        return structlog.get_logger(name)
    stream = cast(TextIO, SteadyStream(sys.stderr))
    return structlog.wrap_logger(structlog.PrintLogger(stream), processors=_text_processors())
