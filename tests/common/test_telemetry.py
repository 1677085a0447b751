"""A log that cannot be written stops no process."""

from __future__ import annotations

import io
import json
import logging
import os
from datetime import datetime, timedelta

import pytest
import structlog

from fedrec.telemetry import SteadyStream, log_to_stderr, logger_of


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_what_can_be_written_is_written():
    stream = io.StringIO()
    print("a line", file=SteadyStream(stream), flush=True)
    assert stream.getvalue() == "a line\n"


def test_a_full_disk_loses_the_line_only():
    print("a line", file=SteadyStream(Full()), flush=True)


def test_a_reader_that_left_loses_the_line_only(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream:
        print("a line", file=SteadyStream(stream), flush=True)
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_logs_of_lower_levels_are_left_out(capsys):
    try:
        log_to_stderr(30)
        structlog.get_logger().info("unimportant")
        structlog.get_logger().warning("disk nearly full", left_bytes=5)
    finally:
        structlog.reset_defaults()
    shown = capsys.readouterr()
    assert "disk nearly full" in shown.err
    assert "unimportant" not in shown.err
    assert shown.out == ""


def test_a_logger_leaves_stdout_to_answers(capsys):
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        logger_of("fedrec.training").warning("something happened", round=3)
        out, err = capsys.readouterr()
        assert out == "" and "something happened" in err and "round" in err
        assert not structlog.is_configured()
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[])
        assert structlog.is_configured()
        assert logger_of("fedrec.training").warning("told", round=3) is not None
        assert capsys.readouterr() == ("", "")
    finally:
        structlog.configure(**before)


@pytest.mark.parametrize("how", ["text", "json", "nobody said how"])
def test_a_traceback_shows_no_variables(capsys, how):
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        if how != "nobody said how":
            log_to_stderr(logging.INFO, as_json=how == "json")
        log = logger_of("fedrec.training")
        try:
            private = ["a history of films"]
            raise ValueError(len(private))
        except ValueError as error:
            log.error("call failed", exc_info=error)
    finally:
        structlog.configure(**before)
    err = capsys.readouterr().err
    assert "ValueError: 1" in err and "Traceback" in err
    assert "a history of films" not in err


def test_json_lines(capsys):
    log_to_stderr(logging.INFO, as_json=True)
    log = structlog.get_logger().bind(run="abc")
    log.debug("not shown")
    log.info("round published", round=3, reason='a "word"\nand a line')
    try:
        secret = 41
        raise ValueError(f"out of {secret + 1}")
    except ValueError:
        log.error("call failed", exc_info=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = map(json.loads, captured.err.splitlines())
    assert datetime.fromisoformat(first.pop("timestamp")).utcoffset() == timedelta(0)
    assert first == {
        "event": "round published", "level": "info", "run": "abc", "round": 3,
        "reason": 'a "word"\nand a line',
    }  # fmt: skip
    assert second["level"] == "error" and second["exception"].endswith("ValueError: out of 42")
