"""Refused calls in the log: one line a minute for each caller and code."""

from __future__ import annotations

import grpc
import pytest
from structlog.testing import capture_logs

from fedrec.errors import ProtocolError, RoundClosed, StorageError
from fedrec.wire.grpc_calls import INCIDENT_KEY
from fedrec_server.service import callers
from fedrec_server.service.callers import RefusalLog

SUBMIT = "/fedrec.wire.v1.Coordinator/SubmitUpdate"


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_line_a_minute_for_each_caller_and_code():
    time = Time()
    log = RefusalLog(time)
    with capture_logs() as lines:
        for second in range(180):
            time.now = float(second)
            for _ in range(10):
                incidents = {
                    log.tell(RoundClosed("over"), SUBMIT, "north"),
                    log.tell(StorageError("full"), SUBMIT, "north"),
                    log.tell(RoundClosed("over"), SUBMIT, "south"),
                }
                assert len(incidents) == 3, "whose details are in the log"
    assert len(lines) == 9
    assert {line["incident"] for line in lines[-3:]} == incidents
    assert [line.get("more_since_the_last_line") for line in lines] == [None] * 3 + [599] * 6
    assert {(line["client"], line["code"]) for line in lines} == {
        ("north", "round_closed"),
        ("north", "storage"),
        ("south", "round_closed"),
    }


def test_defects_are_counted_as_well():
    log = RefusalLog(Time())
    with capture_logs() as lines:
        for _ in range(50):
            log.tell(KeyError("x"), SUBMIT, "")
    (line,) = lines
    assert line["event"] == "call failed" and line["log_level"] == "error"
    assert "client" not in line


def test_callers_that_went_are_forgotten(monkeypatch):
    monkeypatch.setattr(callers, "MOST_KNOWN", 100)
    time = Time()
    log = RefusalLog(time)
    with capture_logs():
        for number in range(1_000):
            time.now = float(number)
            log.tell(ProtocolError("no"), SUBMIT, f"client {number}")
    assert len(log._told) <= 100


def test_a_member_that_is_refused_a_hundred_times(collecting):
    with collecting.channel() as channel, capture_logs() as lines:
        call = channel.unary_unary("/fedrec.wire.v1.Coordinator/NextTask")
        for _ in range(100):
            with pytest.raises(grpc.RpcError) as refused:
                call(b"\xff" * 10, timeout=20)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        listing = channel.unary_unary("/fedrec.wire.v1.Admin/GetStatus")
        told = []
        for _ in range(100):
            with pytest.raises(grpc.RpcError) as refused:
                listing(b"", timeout=20)
            told.append(dict(refused.value.trailing_metadata())[INCIDENT_KEY])
    found = [line for line in lines if line["event"] == "call refused"]
    assert [line["code"] for line in found] == ["protocol", "refused"]
    assert set(told) == {found[1]["incident"]}
