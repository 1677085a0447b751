"""Closing a channel, whatever happened to its calls."""

from __future__ import annotations

import socket
import threading
import time

import grpc
import pytest
from world.keys import credentials

from fedrec.errors import Unreachable
from fedrec.ids import ClientId
from fedrec.listening import proxy_words
from fedrec.wire.admin_link import AdminLink
from fedrec.wire.grpc_calls import close_channel, open_channel
from fedrec.wire.grpc_link import GrpcLink

NAMES = [
    name
    for lower in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    for name in (lower, lower.upper())
]


def test_a_call_that_was_interrupted_at_its_start_does_not_hold_the_end(monkeypatch):
    def interrupted(state: object) -> None:
        raise KeyboardInterrupt

    channel = open_channel("127.0.0.1:1", credentials())
    monkeypatch.setattr(grpc._channel, "_run_channel_spin_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        channel.unary_unary("/service/method").future(b"", timeout=60)
    began = time.monotonic()
    close_channel(channel, seconds=0.1)
    assert time.monotonic() - began < 10


def test_a_closed_channel_takes_no_calls():
    channel = open_channel("127.0.0.1:1", credentials())
    close_channel(channel)
    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary("/service/method")(b"", timeout=1)


class Proxy:
    """Notes what it is asked for, and refuses it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked: list[bytes] = []
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            with line:
                self.asked.append(line.recv(1 << 10))
                line.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    def close(self) -> None:
        # Closing alone wakes no thread that waits for the next one.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def proxy(monkeypatch):
    for name in (*NAMES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    made = Proxy()
    yield made
    made.close()


def unreachable(address: str) -> list[str]:
    """Return what a client and an operator are told."""
    with GrpcLink(address, credentials()) as link, pytest.raises(Unreachable) as of_client:
        link.federation(ClientId("0" * 32))
    operators = AdminLink(address, credentials())
    with pytest.raises(Unreachable) as of_operator:
        operators.status()
    operators.close()
    return [of_client.value.message, of_operator.value.message]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_no_proxy_is_between_this_machine_and_itself(host, proxy, monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, proxy.url)
    for text in unreachable(f"{host}:1"):
        assert "Connection refused" in text and "roxy" not in text
    assert proxy.asked == []


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_elsewhere_the_error_names_the_variable(name, proxy, monkeypatch):
    monkeypatch.setenv(name, proxy.url)
    for text in unreachable("fedrec.example:7447"):
        assert text.startswith("The proxy refused to connect.")
        assert f"{name} is set" in text and "add it to no_proxy" in text
    assert proxy.asked[0].startswith(b"CONNECT fedrec.example:7447 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, ""),
        ({"http_proxy": "http://p:1"}, "http_proxy is set, so"),
        ({"http_proxy": "http://p:1", "no_proxy": "other, Example"}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "other,"}, "http_proxy is set, so"),
        ({"http_proxy": "http://p:1", "no_proxy": "example", "no_grpc_proxy": "x"}, "http_proxy"),
        ({"http_proxy": "http://p:1", "grpc_proxy": "http://q:1"}, "grpc_proxy is set, so"),
        ({"https_proxy": "", "http_proxy": "http://p:1"}, "http_proxy is set, but not used"),
        ({"https_proxy": "socks5://p:1"}, "https_proxy is set, but not used"),
        ({"HTTPS_PROXY": "http://p:1"}, "HTTPS_PROXY is set, but not used"),
        ({"ALL_PROXY": "http://p:1"}, "ALL_PROXY is set, but not used"),
    ],
)
def test_which_variable_is_named(environment, named, proxy, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = proxy_words("fedrec.example:7447")
    assert text.startswith(named) and bool(text) == bool(named)
    assert proxy_words("127.0.0.1:7447") == ""
