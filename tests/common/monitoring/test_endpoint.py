"""Who may read a party's numbers, and what is wrong with settings that cannot be served."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from world.clock import poll
from world.keys import credentials

from fedrec import monitoring
from fedrec.errors import SettingsError
from fedrec.monitoring import MetricsEndpoint, Monitored, Numbers, metrics_endpoint

TOKEN = "0123456789abcdef0123456789abcdef"


def numbers() -> Numbers:
    made = Numbers("client")
    made.counter("fedrec_rounds_total", "Rounds.", ["outcome"]).labels("published").inc(3)
    return made


def get(
    address: str, path: str = "/metrics", token: str = "", context: ssl.SSLContext | None = None
) -> tuple[int, str]:
    """Return the status and the body of an answer."""
    if context is None:
        calling = http.client.HTTPConnection(address, timeout=10)
    else:
        calling = http.client.HTTPSConnection(address, timeout=10, context=context)
    try:
        calling.request("GET", path, headers={"Authorization": token} if token else {})
        answer = calling.getresponse()
        return answer.status, answer.read().decode()
    finally:
        calling.close()


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


def test_numbers_are_read_in_prometheus_form():
    with MetricsEndpoint(numbers().registry, Monitored(address="127.0.0.1:0")) as endpoint:
        status, body = get(endpoint.address)
        assert status == 200
        found = {family.name: family for family in text_string_to_metric_families(body)}
        assert found["fedrec_rounds"].samples[0].value == 3.0
        assert found["process_resident_memory_bytes"].samples[0].value > 1 << 20
        assert found["fedrec_build_info"].samples[0].labels["party"] == "client"
        assert get(endpoint.address, "/")[0] == 404
        assert get(endpoint.address, "/metrics?x=1")[0] == 200


def test_it_is_off_unless_an_address_is_named():
    assert metrics_endpoint(numbers().registry, Monitored()) is None


def test_a_token_is_asked_for_where_there_is_one(token):
    where = Monitored(address="127.0.0.1:0", token=token)
    with MetricsEndpoint(numbers().registry, where) as endpoint:
        for shown in ("", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer \xff"):
            status, body = get(endpoint.address, token=shown)
            assert status == 401 and "fedrec" not in body
        assert get(endpoint.address, token=f"Bearer {TOKEN}")[0] == 200


def test_over_tls(token, tmp_path):
    own = credentials("coordinator")
    path = tmp_path / "own.pem"
    path.write_bytes(own.to_pem())
    where = Monitored(address="127.0.0.1:0", token=token, certificate=str(path))
    context = ssl.create_default_context(cadata=own.issuer.decode())
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # The default from Python 3.13 on.
    with MetricsEndpoint(numbers().registry, where) as endpoint:
        assert get(endpoint.address, token=f"Bearer {TOKEN}", context=context)[0] == 200
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            get(endpoint.address, token=f"Bearer {TOKEN}")
        # A silent connection keeps no other from reading.
        host, _, port = endpoint.address.rpartition(":")
        with socket.create_connection((host, int(port))):
            assert get(endpoint.address, token=f"Bearer {TOKEN}", context=context)[0] == 200


def test_readers_that_break_off_take_no_place():
    """Prometheus killed in mid-scrape: the connection is reset before the answer is read."""
    reset, answered = struct.pack("ii", 1, 0), 0
    with MetricsEndpoint(numbers().registry, Monitored(address="127.0.0.1:0")) as endpoint:
        host, _, port = endpoint.address.rpartition(":")
        # More than there are places. One that finds none yet, as threads have to notice, is hung
        # up on.
        for _ in range(1000):
            with socket.create_connection((host, int(port)), timeout=10) as broken:
                broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                try:
                    broken.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                    answered += len(broken.recv(1))
                except ConnectionError:
                    continue
            if answered == 12:
                break
    assert answered == 12


def test_readers_beyond_the_places_are_hung_up_on():
    with MetricsEndpoint(numbers().registry, Monitored(address="127.0.0.1:0")) as endpoint:
        host, _, port = endpoint.address.rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(4)]
        try:
            with socket.create_connection((host, int(port)), timeout=10) as fifth:
                assert fifth.recv(1) == b""
            for one in silent:
                one.close()
            # Their places are free again as soon as their threads have noticed.
            for _ in range(1000):
                try:
                    if get(endpoint.address)[0] == 200:
                        break
                except (ConnectionError, http.client.HTTPException):
                    continue
            else:
                pytest.fail("no place became free")
        finally:
            for one in silent:
                one.close()


def status_of(address: str, *headers: str) -> int:
    """Return the status of an answer to exactly these headers."""
    host, _, port = address.rpartition(":")

    def answer() -> bytes:
        # No answer comes while the readers before this one still have their places.
        with (
            suppress(ConnectionError),
            socket.create_connection((host.strip("[]"), int(port)), timeout=10) as line,
        ):
            line.sendall("\r\n".join(("GET /metrics HTTP/1.1", *headers, "", "")).encode())
            return line.recv(64)
        return b""

    return int(poll(answer, "an answer").split()[1])


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
def test_a_name_that_was_made_to_point_here_reads_nothing(address, token):
    foreign = ("evil.example", "127.0.0.1.evil.example:9464", "")
    with MetricsEndpoint(numbers().registry, Monitored(address=address)) as endpoint:
        for own in (endpoint.address, "localhost:1", "LOCALHOST", "[::1]", "10.0.0.5:9464"):
            assert status_of(endpoint.address, f"Host: {own}") == 200, own
        for other in foreign:
            assert status_of(endpoint.address, f"Host: {other}") == 421, other
        assert status_of(endpoint.address) == 421
        assert status_of(endpoint.address, "Host: localhost", "Host: evil.example") == 421
    where = Monitored(address=address, token=token)
    with MetricsEndpoint(numbers().registry, where) as endpoint:
        # Prometheus calls a container by a name that the party does not know.
        shown = f"Authorization: Bearer {TOKEN}"
        assert status_of(endpoint.address, "Host: coordinator:9464", shown) == 200
        assert status_of(endpoint.address, "Host: evil.example") == 401


@pytest.mark.slow
def test_readers_that_ask_a_byte_at_a_time_keep_no_place(monkeypatch):
    monkeypatch.setattr(monitoring, "READER_SECONDS", 0.5)
    with MetricsEndpoint(numbers().registry, Monitored(address="127.0.0.1:0")) as endpoint:
        host, _, port = endpoint.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=0.05) as trickling:
            for _ in range(10_000):
                try:
                    trickling.sendall(b"x")
                    if not trickling.recv(1):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("it was never hung up on")
        assert get(endpoint.address)[0] == 200


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9464", "example.org:80"])
def test_another_address_needs_a_token(address):
    with pytest.raises(SettingsError, match="can be reached from other machines") as refused:
        MetricsEndpoint(numbers().registry, Monitored(address=address))
    assert "metrics_token" in refused.value.message


def test_a_token_opens_other_addresses(token):
    where = Monitored(address="0.0.0.0:0", token=token)
    with MetricsEndpoint(numbers().registry, where) as endpoint:
        port = endpoint.address.rpartition(":")[2]
        assert get(f"127.0.0.1:{port}")[0] == 401
        assert get(f"127.0.0.1:{port}", token=f"Bearer {TOKEN}")[0] == 200


def test_what_cannot_be_served_is_a_settings_error(tmp_path):
    def problem(address: str = "127.0.0.1:0", **files: Path) -> str:
        where = Monitored.of(
            address,
            str(files["token"]) if "token" in files else None,
            str(files["certificate"]) if "certificate" in files else None,
            section="coordinator",
        )
        with pytest.raises(SettingsError) as refused:
            MetricsEndpoint(numbers().registry, where)
        assert refused.value.remedy
        return refused.value.message

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert problem(address).startswith(f"coordinator.metrics_address: {address} cannot be op")
    assert "is not host:port" in problem("9464")
    assert "no port from 0 to 65535" in problem("127.0.0.1:70000")
    missing, short, two = (tmp_path / name for name in ("missing", "short", "two"))
    short.write_text(TOKEN[:-1])
    two.write_text(f"{TOKEN} {TOKEN}")
    assert "coordinator.metrics_token" in problem(token=missing)
    assert "cannot be read: No such file" in problem(token=missing)
    assert "has no token" in problem(token=short)
    assert "has no token" in problem(token=two)
    assert "coordinator.metrics_certificate" in problem(certificate=missing)
    assert "cannot be used" in problem(certificate=short)


def test_the_disk_is_looked_up_when_it_is_read(tmp_path):
    made = Numbers("client")
    made.disk_free(tmp_path / "later")
    assert str(made.registry.get_sample_value("fedrec_disk_free_bytes")) == "nan"
    (tmp_path / "later").mkdir()
    found = made.registry.get_sample_value("fedrec_disk_free_bytes")
    assert found is not None and found > 0
