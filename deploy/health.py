"""Asks the coordinator of a settings file, on this machine, whether it serves.

`python health.py SETTINGS.toml` ends with 0 if it does and with 1 if not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedrec.config.loading import load_settings
from fedrec.config.schema import CoordinatorSettings

TIMEOUT_SECONDS = 5.0


def main() -> None:
    """Ask once and leave with the answer."""
    settings = load_settings(sys.argv[1]).coordinator
    with _channel(settings) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            found = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            sys.exit(f"The coordinator does not answer: {error.code().name}.")
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(found.status)
    print(status)
    sys.exit(status != "SERVING")


def _channel(settings: CoordinatorSettings) -> grpc.Channel:
    address = f"localhost:{settings.port}"
    if settings.certificate is None:
        return grpc.insecure_channel(address)
    pem = Path(settings.certificate).read_bytes()
    credentials = grpc.ssl_channel_credentials(root_certificates=pem)
    # The certificate names the host that clients call, which need not be localhost.
    options = [("grpc.ssl_target_name_override", _first_name(pem))]
    return grpc.secure_channel(address, credentials, options=options)


def _first_name(pem: bytes) -> str:
    certificate = x509.load_pem_x509_certificate(pem)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [*found.get_values_for_type(x509.DNSName), "localhost"]
    return names[0].replace("*", "any")


if __name__ == "__main__":
    main()
