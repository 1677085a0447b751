"""What the port lets a stream bring before it is read."""

from __future__ import annotations

import pytest

from fedrec_server.service.tls_port import options


@pytest.mark.parametrize(
    ("n_clients", "window"), [(1, 8 << 20), (16, 512 << 10), (100, 83_886), (10_000, 64 << 10)]
)
def test_clients_share_8_mib_and_have_what_http2_begins_with(n_clients, window):
    found = dict(options(n_clients))
    assert found["grpc.http2.lookahead_bytes"] == window
    assert not found["grpc.http2.bdp_probe"]
