"""A coordinator as a real process speaks TLS 1.3 and nothing else, or does not run."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
{first}
from server.support.federations import Bench, credentials
from server.support.serving import settings_of
from fedrec.identity.document import write_secret
from fedrec_server.app import Coordinator

bench, folder = Bench.of(3), Path(sys.argv[1])
write_secret(folder / "client.pem", credentials(0).to_pem())
coordinator = Coordinator(settings_of(folder), bench.federation)
tell = lambda address, run: print(json.dumps([address, run]), flush=True)
asyncio.run(coordinator.serve(tell))
"""


def program(folder: Path, first: str = "") -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if "GRPC" not in name}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(first=first), str(folder)],
        env=environment | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def spoken(address: str, folder: Path, newest: ssl.TLSVersion) -> str | None:
    """Return what a client with a good certificate and no newer TLS than this agrees on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "client.pem")
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as bare,
        context.wrap_socket(bare) as found,
    ):
        return found.version()


def test_tls12(tmp_path):
    with program(tmp_path) as running:
        assert running.stdout is not None
        try:
            address = json.loads(next(line for line in running.stdout if line.startswith("[")))[0]
            assert spoken(address, tmp_path, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                spoken(address, tmp_path, ssl.TLSVersion.TLSv1_2)
        finally:
            running.terminate()
            running.communicate(timeout=20)


def test_a_coordinator_that_would_speak_tls12_refuses_to_run(tmp_path):
    """As where gRPC was imported before fedrec could tell it."""
    with program(tmp_path, first="import grpc") as refusing:
        said, complained = refusing.communicate(timeout=60)
    assert refusing.returncode == 1 and "[" not in said[:1]
    assert "would speak TLSv1.2" in complained and "GRPC_SSL_CIPHER_SUITES" in complained
