"""A certificate for a coordinator that has none from an authority: self-signed, to be pinned."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedrec.errors import SettingsError
from fedrec.identity.key_files import write_public, write_secret

__all__ = ["CERTIFICATE_FILE", "PRIVATE_KEY_FILE", "write_certificate"]

CERTIFICATE_FILE = "coordinator.crt"
PRIVATE_KEY_FILE = "coordinator.key"
_CLOCK_SKEW = timedelta(hours=1)


def write_certificate(folder: Path, hosts: Sequence[str], *, days: int, now: datetime) -> Path:
    """Make a P-256 key and a certificate that is its own authority; return the certificate.

    Clients name the certificate as `client.root_certificate` and trust nobody else.

    Args:
        hosts: names or addresses that clients call.
        days: how long it is valid.
        now: the present time, with its zone.

    Raises:
        SettingsError: when no host is given.
        KeysError: when the key file exists already.
    """
    if not hosts:
        raise SettingsError("A certificate needs at least one host name.", remedy="Give --host.")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _CLOCK_SKEW)
        .not_valid_after(now.astimezone(UTC) + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_secret(folder / PRIVATE_KEY_FILE, pem)
    write_public(folder / CERTIFICATE_FILE, certificate.public_bytes(Encoding.PEM))
    return folder / CERTIFICATE_FILE


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
