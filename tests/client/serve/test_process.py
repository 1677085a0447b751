"""The command as a process: signals, addresses, limits of connections, reloads, and memory."""

import http.client
import json
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from world.keys import credentials
from world.silo import Silo

from fedrec.cli.main import main
from fedrec_client.own_recommender import own_recommender
from fedrec_client.serve import server
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow

FEDREC = Path(sys.executable).parent / "fedrec"
WAIT_SECONDS = 60


class Server:
    """A running server."""

    def __init__(self, process):
        self.process = process
        note = process.stdout.readline()
        assert note, process.communicate()[1]
        self.address: str = json.loads(note)["address"]
        self.host, _, port = self.address.partition("://")[2].rpartition(":")
        self.host = self.host.strip("[]")
        self.port = int(port)

    def ask(self, path, *, headers=None):
        """Return the status and the JSON of one request."""
        return self.answer(
            http.client.HTTPConnection(self.host, self.port, timeout=30), path, headers
        )

    def answer(self, line, path, headers=None):
        line.request("GET", path, headers=headers or {})
        found = line.getresponse()
        status, body = found.status, json.loads(found.read())
        line.close()
        return status, body

    def until(self, version):
        """Wait until a version is served."""
        end = time.monotonic() + WAIT_SECONDS
        while self.ask("/health")[1]["version"] != version:
            assert time.monotonic() < end, self.ask("/health")
            time.sleep(0.05)

    def raw(self, content):
        """Return everything that comes back for some bytes, until the server closes."""
        with socket.create_connection((self.host, self.port), timeout=WAIT_SECONDS) as line:
            line.sendall(content)
            found = b""
            while part := line.recv(1 << 16):
                found += part
        return found

    def stop(self, number):
        """Send a signal; return the exit code and the rest of stdout and stderr."""
        self.process.send_signal(number)
        rest = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, *rest


@contextmanager
def serving(silo, *words):
    command = [FEDREC, "client", "serve", silo.settings_file, "--port", "0", *words]
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A usual limit of files, which the server's own limit of connections is above.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096)),
    ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture
def refused(silo, monkeypatch, capsys):
    """Returns what the command says where it does not start for its settings' sake."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")

    def call(*words):
        with pytest.raises(SystemExit) as left:
            main(["client", "serve", str(silo.settings_file), *map(str, words)])
        shown = capsys.readouterr()
        assert left.value.code == 2, shown.err
        assert shown.out == ""
        return shown.err

    return call


def test_from_an_empty_folder_to_the_second_version(silo):
    # The coordinator named in the settings does not answer.
    with serving(silo) as server:
        assert server.address.startswith("http://127.0.0.1:")
        status, note = server.ask(f"/v1/recommend?user={silo.user}")
        assert (status, note["error"]["code"]) == (503, "not_ready")
        silo.publish(3)
        server.until(3)
        ids, _ = own_recommender(silo.settings).recommend(silo.user, 10)
        status, note = server.ask(f"/v1/recommend?user={silo.user}")
        assert status == 200
        assert [item["item_id"] for item in note["items"]] == ids.tolist()
        with PrivateStore(silo.state):
            assert server.ask(f"/v1/recommend?user={silo.user}")[0] == 200
        silo.publish(4)
        server.until(4)
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        assert children == "", "the process that read the data has ended"
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "numpy" in maps
        assert "libtorch" not in maps
        assert "pyarrow" not in maps
        status_lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        resident = next(line.split()[1] for line in status_lines if line.startswith("VmRSS"))
        assert int(resident) * 1024 < 150e6
        code, out, err = server.stop(signal.SIGTERM)
    assert (code, out) == (0, "")
    assert "version 3 is served" in err
    assert "version 4 is served" in err
    assert "Traceback" not in err


def test_ctrl_c_ends_it_though_a_caller_is_connected(silo):
    silo.publish(3)
    with serving(silo, "--json", "--host", "[::1]") as server:
        assert server.address.startswith("http://[::1]:")
        assert server.ask(f"/v1/recommend?user={silo.user}")[0] == 200
        with socket.create_connection((server.host, server.port)) as line:
            line.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
            code, out, err = server.stop(signal.SIGINT)
    assert (code, json.loads(out)) == (130, {"ending": "interrupted"})
    assert "Traceback" not in err


def test_every_answer_is_wholly_of_one_version(silo, monkeypatch):
    """Its log is for machines where the settings say so."""
    monkeypatch.setenv("FEDREC_CLIENT__LOG_FORMAT", "json")
    answers: dict[int, list[str]] = {}
    with serving(silo) as server:
        silo.publish(3)
        server.until(3)
        wrong: list[object] = []
        over = threading.Event()

        def ask_on():
            while not over.is_set():
                status, note = server.ask(f"/v1/recommend?user={silo.user}&n=20")
                if status != 200:
                    wrong.append(note)
                    continue
                found = [f"{item['item_id']} {item['score']!r}" for item in note["items"]]
                if answers.setdefault(note["version"], found) != found:
                    wrong.append(note)

        asking = [threading.Thread(target=ask_on) for _ in range(3)]
        for thread in asking:
            thread.start()
        for version in (4, 5, 6):
            silo.publish(version)
            server.until(version)
        over.set()
        for thread in asking:
            thread.join()
        _, _, err = server.stop(signal.SIGTERM)
    assert wrong == []
    assert set(answers) == {3, 4, 5, 6}
    assert len({tuple(found) for found in answers.values()}) == 4
    first, *_, last = map(json.loads, err.splitlines())
    assert (first["event"], first["level"]) == ("not ready", "warning")
    assert (last["event"], last["version"], last["level"]) == ("version served", 6, "info")
    assert last["run"] and last["timestamp"]


def test_what_others_could_read_is_refused(silo, refused, tmp_path):
    token = tmp_path / "token"
    token.write_text("a" * 32)
    for words, note in (
        (("--host", "0.0.0.0"), "any machine that reaches it"),
        (("--host", "0.0.0.0", "--token-file", token), "in the clear"),
        (("--host", "0.0.0.0", "--accept-plaintext"), "any machine that reaches it"),
        (("--tls-key", token), "must be given together"),
        (("--token-file", token), "chmod 600"),
        (("--token-file", tmp_path / "missing"), "missing"),
    ):
        assert note in refused(*words)
    token.chmod(0o600)
    elsewhere = ("--host", "198.51.100.7", "--token-file", token, "--accept-plaintext")
    assert "--host 198.51.100.7 --port 7480 cannot be used" in refused(*elsewhere)
    assert "--host ::: any machine" in refused("--host", "[::]"), "no brackets are left"
    assert "--host: 'http://127.0.0.1' is not a host" in refused("--host", "http://127.0.0.1")
    assert "--allow-host: 'a:1' is not a host" in refused("--allow-host", "a:1")
    token.write_text("short")
    note = refused("--token-file", token)
    assert "letters and digits" in note and "(umask 077 && openssl rand -hex 32 > FILE)" in note
    (silo.folder / "client.toml").write_text('[client]\nstate = "state"\n')
    assert "data.path is missing" in refused()


def test_a_port_in_use_is_a_mistake_in_the_settings(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} of 127.0.0.1 is in use" in refused("--port", port)


def test_tls_and_a_token_on_another_address(silo, refused, tmp_path):
    silo.publish(3)
    own = credentials("coordinator", "serve")
    files = {"token": b"b" * 32, "chain": own.certificate, "key": own.private_key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "issuer").write_bytes(own.issuer)
    words = ("--tls-certificate", tmp_path / "chain", "--tls-key", tmp_path / "key")
    with serving(silo, "--host", "0.0.0.0", "--token-file", tmp_path / "token", *words) as server:
        assert server.address.startswith("https://0.0.0.0:")
        context = ssl.create_default_context(cafile=str(tmp_path / "issuer"))

        def ask(path, headers=None):
            line = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
            return server.answer(line, path, headers)

        path = f"/v1/recommend?user={silo.user}"
        end = time.monotonic() + WAIT_SECONDS
        while ask("/health")[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert ask(path)[1]["error"]["code"] == "unauthorised"
        assert ask(path, {"authorization": "Bearer " + "b" * 32})[0] == 200
        old = ssl.create_default_context(cafile=str(tmp_path / "issuer"))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            pytest.raises(ssl.SSLError),
            socket.create_connection(("127.0.0.1", server.port)) as line,
            old.wrap_socket(line, server_hostname="127.0.0.1"),
        ):
            pass
    (tmp_path / "chain").write_bytes(b"nothing")
    assert "PEM" in refused(*words)


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """A server without a model: limits of connections need none."""
    with serving(Silo(tmp_path_factory.mktemp("idle"))) as server:
        yield server


POST = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def code_of(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b" ", 2)[1], json.loads(body)["error"]["code"]


def test_what_is_no_http(idle):
    assert code_of(idle.raw(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03")) == (
        b"400",
        "malformed",
    )
    assert idle.process.poll() is None


@pytest.mark.parametrize(
    "head", [b"GET /docs?" + b"a" * (4 << 20), b"GET / HTTP/1.1\r\nx: " + b"a" * (4 << 20)]
)
def test_heads_without_end(idle, head):
    with socket.create_connection((idle.host, idle.port), timeout=WAIT_SECONDS) as line:
        sent = 0
        try:
            while sent < len(head):
                sent += line.send(head[sent : sent + 4096])
        except ConnectionError:
            pass
        # The rest was not read: what came back may be lost with the connection.
        assert sent < len(head) or code_of(line.recv(4096))[1] == "head_too_large"
    assert idle.ask("/health")[1]["status"] == "not_ready"


@pytest.mark.parametrize(
    "content",
    [
        b"GET /docs?" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /docs HTTP/1.1\r\nhost: localhost\r\n"
        + b"".join(b"x-%d: %s\r\n" % (number, b"a" * 1000) for number in range(40))
        + b"\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * (4 << 20),
        POST + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: aaaaaaa\r\n" * 400_000,
    ],
    ids=["address", "headers", "a trailer", "trailers"],
)
def test_a_head_or_trailers_that_come_at_once(idle, content):
    with socket.create_connection((idle.host, idle.port), timeout=WAIT_SECONDS) as line:
        try:
            line.sendall(content)
        except ConnectionError:
            # The rest was not read: what came back is lost with the connection.
            return
        assert code_of(line.recv(4096))[1] == "head_too_large"
    assert idle.ask("/health")[1]["status"] == "not_ready"


def test_what_comes_behind_a_body_is_no_header(idle):
    body = b"0\r\nhost: evil.example\r\nauthorization: Bearer x\r\n\r\n"
    found = idle.raw(POST + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + body)
    assert code_of(found) == (b"400", "malformed")


def test_a_body_of_a_megabyte(idle):
    body = b'{"user": "' + b"a" * (1 << 20) + b'"}'
    head = (
        b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    assert code_of(idle.raw(head + body)) == (b"413", "too_large")


def test_who_sends_slowly_is_let_go_and_others_are_answered(idle):
    starts = (
        b"",
        b"GET /health HTTP/1.1\r\nhost: local",
        b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{",
    )
    address = (idle.host, idle.port)
    answered = [socket.create_connection(address, timeout=WAIT_SECONDS) for _ in range(2)]
    for line, more in zip(answered, (b"", b"connection: upgrade\r\nupgrade: h2c\r\n"), strict=True):
        line.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + more + b"\r\n")
        answer = b""
        while b"not_ready" not in answer:
            answer += line.recv(4096)
        # Less than a request: it must not keep the connection.
        line.sendall(b"\r\n")
    lines = [socket.create_connection(address, timeout=WAIT_SECONDS) for _ in starts]
    for line, start in zip(lines, starts, strict=True):
        line.sendall(start)
    assert idle.ask("/health")[0] == 503
    found = []
    for line in lines:
        with line:
            answer = b""
            while part := line.recv(4096):
                answer += part
            found.append(code_of(answer))
    assert found == [(b"408", "too_slow")] * 3
    for line in answered:
        with line:
            assert line.recv(4096) == b""
    assert idle.ask("/health")[0] == 503


def test_too_many_connections(idle):
    address = (idle.host, idle.port)
    lines = []
    try:
        while True:
            line = socket.create_connection(address, timeout=WAIT_SECONDS)
            lines.append(line)
            if len(lines) > server.MOST_CONNECTIONS:
                break
        assert code_of(lines[-1].recv(4096)) == (b"503", "too_busy")
    finally:
        for line in lines:
            line.close()
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            assert idle.ask("/health")[1]["status"] == "not_ready"
            return
        except (KeyError, OSError):
            assert time.monotonic() < end
