"""Closing a channel, whatever happened to its calls."""

from __future__ import annotations

import time

import grpc
import pytest
from tls import credentials

from fedrec.wire.grpc_channel import close_channel, open_channel


def test_a_call_that_was_interrupted_at_its_start_does_not_hold_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(state: object) -> None:
        raise KeyboardInterrupt

    channel = open_channel("127.0.0.1:1", credentials())
    monkeypatch.setattr(grpc._channel, "_run_channel_spin_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        channel.unary_unary("/service/method").future(b"", timeout=60)
    began = time.monotonic()
    close_channel(channel, seconds=0.1)
    assert time.monotonic() - began < 10


def test_a_closed_channel_takes_no_calls() -> None:
    channel = open_channel("127.0.0.1:1", credentials())
    close_channel(channel)
    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary("/service/method")(b"", timeout=1)
