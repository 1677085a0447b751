"""Asks the coordinator of a settings file, on this machine, whether it serves.

`python health.py SETTINGS.toml` ends with 0 if it does and with 1 if not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedrec.identity.certificates import Credentials
from fedrec.listening import reached_from_here, written_address
from fedrec.settings.validation import load_settings
from fedrec.wire.grpc_calls import open_channel

TIMEOUT_SECONDS = 5.0


def main() -> None:
    """Ask once and exit with the answer."""
    settings = load_settings(sys.argv[1]).coordinator
    # The coordinator's certificate also names this machine, so it can be used for this call.
    own = Credentials.load(Path(settings.certificate), "coordinator.certificate")
    address = written_address(reached_from_here(settings.host), settings.port)
    with open_channel(address, own) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            found = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            sys.exit(f"The coordinator does not answer: {error.code().name}.")
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(found.status)
    print(status)
    sys.exit(status != "SERVING")


if __name__ == "__main__":
    main()
