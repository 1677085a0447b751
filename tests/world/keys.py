"""Keys and certificates that tests share: making them takes longer than most tests.

No test changes them. One that needs others, or two sets under one plan, calls `generate` itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fedrec.identity.certificates import Credentials, Issuer, Role
from fedrec.protection import Protection

_KEYS: dict[bytes, tuple[bytes, bytes]] = {}
_ENCRYPTION_KEYS: dict[bytes, bytes] = {}


def keys_of(protection: Protection) -> tuple[bytes, bytes]:
    """Return the context and the secret of a protection's plan."""
    plan = protection.chosen.fingerprint()
    if plan not in _KEYS:
        context, secret = protection.generate()
        _KEYS[plan] = (context, secret.export_for_wrapping())
    return _KEYS[plan]


def encryption_key_of(protection: Protection, secret: bytes) -> bytes:
    """Return the key that only encrypts, of a secret."""
    if secret not in _ENCRYPTION_KEYS:
        _ENCRYPTION_KEYS[secret] = protection.encryption_key(secret)
    return _ENCRYPTION_KEYS[secret]


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
