"""Connections to a party's web server."""

from __future__ import annotations

import socket
import sys

import pytest

from fedrec.web_server import listening_socket


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is Linux's")
def test_who_vanished_is_given_up_after_a_minute() -> None:
    """Sooner than the quarter of an hour in which Linux by itself repeats what nobody answers."""
    with (
        listening_socket("127.0.0.1", 0, backlog=1) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        found = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert found == 60_000
