"""Keys that are made once for all tests of a process: making them takes longer than most tests.

No test changes them. One that needs others, or two sets under one plan, calls `generate` itself.
"""

from __future__ import annotations

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
