"""Names that a page can take for itself are refused; addresses and pages of our own are not."""

from __future__ import annotations

import pytest

from fedrec_client.serve.request_reading import Gate, Refusal


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7480", "localhost:1", "LOCALHOST", "[::1]:7480", "10.0.0.5:80"],
)
def test_addresses_and_localhost(host):
    Gate().check([(b"host", host.encode())])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7480", "", "a@127.0.0.1"],
)
def test_other_names(host):
    gate = Gate()
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            gate.check([(b"host", host.encode())])
        assert refused.value.code == "foreign_host"


def test_hosts_are_named_once():
    for hosts in ([], [(b"host", b"localhost"), (b"host", b"evil.example")]):
        with pytest.raises(Refusal):
            Gate().check(hosts)


def test_a_name_that_was_allowed():
    Gate(["Films.Example."]).check([(b"host", b"films.example:443")])


@pytest.mark.parametrize(
    ("name", "value", "let_in"),
    [
        (b"origin", b"http://localhost:7480", True),
        (b"origin", b"http://localhost:8000", False),
        (b"origin", b"null", False),
        (b"origin", b"https://evil.example", False),
        (b"sec-fetch-site", b"same-origin", True),
        (b"sec-fetch-site", b"none", True),
        (b"sec-fetch-site", b"cross-site", False),
        (b"sec-fetch-site", b"same-site", False),
    ],
)
def test_pages_of_other_sites(name, value, let_in):
    headers = [(b"host", b"localhost:7480"), (name, value)]
    if let_in:
        Gate().check(headers)
        return
    with pytest.raises(Refusal) as refused:
        Gate().check(headers)
    assert refused.value.code == "cross_origin"
