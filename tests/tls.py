"""Certificates of a federation of the tests, made once, and what a server needs to ask for them."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedrec.identity.certificates import Credentials, Issuer, Role


@cache
def issuer(name: str = "ours") -> Issuer:
    """Return who issues the certificates of a federation."""
    return Issuer.create()


@cache
def credentials(role: Role = "client", name: str = "somebody", of: str = "ours") -> Credentials:
    """Return what a party shows; the same for the same words."""
    hosts = ("127.0.0.1", "localhost") if role == "coordinator" else ()
    return issuer(of).credentials(role, name, hosts=hosts)


def server_credentials() -> Any:
    """Return what a gRPC server of a test asks of its callers, and shows."""
    import grpc

    own = credentials("coordinator")
    return grpc.ssl_server_credentials(
        [(own.private_key, own.certificate)], own.issuer, require_client_auth=True
    )
