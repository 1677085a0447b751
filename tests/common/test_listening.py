"""Addresses: what is read is written again, and no address is offered that cannot be called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import SettingsError
from fedrec.listening import (
    address_to_call,
    is_own_address,
    names_server,
    plain_host,
    reached_from_here,
    split_address,
    written_address,
)

ZONES = st.from_regex(r"[A-Za-z0-9._~-]{1,12}", fullmatch=True)
LABELS = st.from_regex(r"[A-Za-z]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?", fullmatch=True)
HOSTS = st.one_of(
    st.ip_addresses().map(str),
    st.builds("{}%{}".format, st.ip_addresses(v=6), ZONES),
    st.lists(LABELS, min_size=1, max_size=4).map(".".join),
)


@given(HOSTS, st.integers(min_value=0, max_value=65_535))
def test_what_is_written_is_read_again(host, port):
    assert split_address(written_address(host, port)) == (host, port)
    assert plain_host(host) == host
    if ":" in host:
        assert plain_host(f"[{host}]") == host
        with pytest.raises(SettingsError, match="without brackets"):
            split_address(f"{host}:{port}")


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("[::1]:7447", "[::1]:7447"),
        ("[0:0::0:1]:07447", "[::1]:7447"),
        ("[fe80::1%eth0]:1", "[fe80::1%eth0]:1"),
        ("Fedrec.Example.:65535", "Fedrec.Example:65535"),
        ("bücher.example:7447", "xn--bcher-kva.example:7447"),
        # Not strasse.example, which may belong to another.
        ("straße.example:7447", "xn--strae-oqa.example:7447"),
        ("例え.テスト:7447", "xn--r8jz45g.xn--zckzah:7447"),
    ],
)
def test_one_form_is_passed_on(given, plain):
    assert address_to_call(given) == plain
    assert address_to_call(plain) == plain


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("https://fedrec.example:7447", "has a scheme"),
        ("grpc://[::1]:7447/", "has a scheme"),
        ("", "is not host:port"),
        (":7447", "is not host:port"),
        ("fedrec.example", "is not host:port"),
        ("fedrec.example:", "is not host:port"),
        ("fedrec.example:7447/path", "is not host:port"),
        ("fedrec.example:\N{ARABIC-INDIC DIGIT SEVEN}", "no port from 1 to 65535"),
        ("fedrec.example:0", "no port from 1 to 65535"),
        ("fedrec.example:65536", "no port from 1 to 65535"),
        ("fedrec.example:1000001", "no port from 1 to 65535"),
        ("0.0.0.0:7447", "cannot be called"),
        ("[::]:7447", "cannot be called"),
        ("[::%eth0]:7447", "cannot be called"),
        ("224.0.0.1:7447", "cannot be called"),
        ("255.255.255.255:7447", "cannot be called"),
        ("[::ffff:0.0.0.0]:7447", "cannot be called"),
        ("[::ffff:224.0.0.1]:7447", "cannot be called"),
        ("[fe80::1%a b]:7447", "zone"),
        ("::1:7447", "without brackets"),
        ("[2001:db8::1]", "has no port"),
        ("[::1:7447", "without brackets"),
        ("[127.0.0.1]:7447", "brackets"),
        ("my_host:7447", "is not a host"),
        ("me@fedrec.example:7447", "is not a host"),
        ("fedrec.example/path:7447", "is not a host"),
        ("fedrec example:7447", "is not a host"),
        (" fedrec.example:7447", "is not a host"),
        ("fedrec..example:7447", "is not a host"),
        ("-fedrec.example:7447", "is not a host"),
        ("[fedrec.example]:7447", "is not a host"),
        ("300.1.1.1:7447", "is not a host"),
        ("127.1:7447", "is not a host"),
        ("[]:7447", "is not a host"),
        ("\N{SNOWMAN}.example:7447", "is not a host"),
        (f"{'a' * 64}.example:7447", "is not a host"),
        (f"{'a.' * 127}example:7447", "too long"),
    ],
)
def test_addresses_that_cannot_be_called(address, why):
    with pytest.raises(SettingsError, match=why) as refused:
        address_to_call(address, "--address")
    assert refused.value.message.startswith("--address: '")
    assert refused.value.remedy


def test_everywhere_is_for_listening():
    assert split_address("0.0.0.0:0") == ("0.0.0.0", 0)
    assert split_address("[::]:0") == ("::", 0)
    assert [reached_from_here(host) for host in ("0.0.0.0", "::", "10.0.0.5", "a.example")] == [
        "127.0.0.1", "::1", "10.0.0.5", "a.example",
    ]  # fmt: skip


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_own_addresses(host):
    assert is_own_address(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "localhost.example", "fe80::1%lo"])
def test_other_addresses(host):
    assert not is_own_address(host)


def test_host_headers():
    for named in (
        "127.0.0.1",
        "[::1]:7480",
        "[fe80::1%25eth0]:1",
        "films.example.:80",
        "FILMS.example",
    ):
        assert names_server(named, {"films.example"}), named
    for foreign in ("", "evil.example", "127.0.0.1.evil.example", "[evil.example]", "a@127.0.0.1"):
        assert not names_server(foreign, {"films.example"}), foreign
