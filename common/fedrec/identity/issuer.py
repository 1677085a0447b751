"""The key authority as the issuer of certificates.

Its P-256 key signs nothing else. Certificates are valid for ten years, because membership ends in
the roster, which is looked up at every call: a date would lock the door through which its renewal
comes. Invitations alone run out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_der_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedrec.errors import KeysError
from fedrec.identity.certificates import (
    MARK,
    Credentials,
    key_of,
    parsed,
    pem_of,
    private_key_of,
    spki_of,
    split_certificates,
)
from fedrec.identity.secret import Secret

__all__ = ["INVITATION_DAYS", "Issuer", "Role"]

Role: TypeAlias = Literal["coordinator", "operator", "client", "invitation"]

YEARS_DAYS = 3652
INVITATION_DAYS = 14
_CLOCK_SKEW = timedelta(days=1)
_REMEDY = "Restore the key authority's folder from a copy (`fedrec keys restore`)."
_USES = {
    "coordinator": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    "operator": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "invitation": [ExtendedKeyUsageOID.CLIENT_AUTH],
}
"""A member's certificate must not pass for the coordinator's; that one asks itself, too."""


class Issuer(Secret):
    """The authority's key for certificates, and its own certificate (PEM)."""

    __slots__ = ("_key", "certificate")

    def __init__(self, key: PrivateKey, certificate: bytes) -> None:
        self._key = key
        self.certificate = certificate

    @classmethod
    def create(cls, *, now: datetime | None = None) -> Issuer:
        """Make a new key and sign its certificate with it."""
        key = generate_private_key(SECP256R1())
        names = (_name("fedrec key authority"), _name("fedrec key authority"))
        return cls(key, _signed(names, spki_of(key), key, days=YEARS_DAYS, now=now))

    @classmethod
    def from_pem(cls, raw: bytes, what: str) -> Issuer:
        """Read what `to_pem` wrote.

        Raises:
            KeysError: it is no issuer's key and certificate.
        """
        found = cls(private_key_of(raw, what), b"".join(split_certificates(raw)))
        if key_of(found.certificate, what) != spki_of(found._key):
            raise KeysError(f"{what}: key and certificate are not of one issuer.", remedy=_REMEDY)
        return found

    def to_pem(self) -> bytes:
        """Return the key and the certificate."""
        return pem_of(self._key) + self.certificate

    def issue(
        self,
        role: Role,
        name: str,
        key: bytes,
        *,
        hosts: Sequence[str] = (),
        now: datetime | None = None,
    ) -> bytes:
        """Return a certificate for somebody's public key.

        Args:
            name: for people; identity is the key.
            key: its SubjectPublicKeyInfo.
            hosts: names and addresses at which a coordinator is called.
        """
        days = INVITATION_DAYS if role == "invitation" else YEARS_DAYS
        issuer = parsed(self.certificate, "The issuer").subject
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(MARK + role)]
        return _signed(
            (_name(name), issuer), key, self._key, days=days, now=now, role=role,
            names=[*names, *(_host(host) for host in hosts)],
        )  # fmt: skip

    def credentials(
        self, role: Role, name: str, *, hosts: Sequence[str] = (), now: datetime | None = None
    ) -> Credentials:
        """Make a key and the certificate for it."""
        key = generate_private_key(SECP256R1())
        certificate = self.issue(role, name, spki_of(key), hosts=hosts, now=now)
        return Credentials(
            private_key=pem_of(key), certificate=certificate, issuer=self.certificate
        )


def _signed(
    names_of: tuple[x509.Name, x509.Name],
    key: bytes,
    issuer_key: PrivateKey,
    *,
    days: int,
    now: datetime | None,
    role: Role | None = None,
    names: Sequence[x509.GeneralName] = (),
) -> bytes:
    present = now or datetime.now(UTC)
    public = load_der_public_key(key)
    if not isinstance(public, EllipticCurvePublicKey):
        raise KeysError("A certificate is for a P-256 key only.", remedy=_REMEDY)
    is_issuer = role is None
    made = (
        x509.CertificateBuilder()
        .subject_name(names_of[0])
        .issuer_name(names_of[1])
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(present - _CLOCK_SKEW)
        .not_valid_after(present + timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_issuer, 0 if is_issuer else None), critical=True)
    )
    if role is not None:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage(_USES[role]), critical=False)
    return made.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64] or "unnamed")])


def _host(host: str) -> x509.GeneralName:
    try:
        # A zone is of one machine: no certificate has it, and gRPC compares addresses without.
        return x509.IPAddress(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return x509.DNSName(host)
