"""Certificates for mutual TLS: the files that a party loads, their checks, and their issuer."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedrec.errors import CertificateExpired, KeysError
from fedrec.identity.document import read_secret
from fedrec.identity.secret import Secret

CERTIFICATE_FILE = "client.crt"
"""A client's certificate in its state folder."""
_SEPARATOR = b"-----BEGIN CERTIFICATE-----"
MARK = "fedrec:"
"""The prefix of the role in a certificate's alternative name."""
_REMEDY = "Ask the key authority for the file again. `fedrec provision` makes them."
_LATE_REMEDY = (
    "Set this machine's clock. If an invitation expired, ask for a new one (`fedrec provision "
    "--add NAME`)."
)
_AHEAD_REMEDY = (
    "Set this machine's clock. If the key authority's clock was ahead, set that one and reissue "
    "the certificate. `fedrec keys rotate` reissues those of members."
)


def pem_of(key: PrivateKey) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def spki_of(key: PrivateKey) -> bytes:
    """Return the public half of a key as its SubjectPublicKeyInfo."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class Credentials(Secret):
    """A party's private key and certificates for the TLS handshake, as PEM.

    Attributes:
        private_key: its P-256 key.
        certificate: the certificate for that key.
        issuer: the certificate that must have issued every other party's.
    """

    __slots__ = ("certificate", "issuer", "private_key")

    def __init__(self, *, private_key: bytes, certificate: bytes, issuer: bytes) -> None:
        self.private_key = private_key
        self.certificate = certificate
        self.issuer = issuer

    def to_pem(self) -> bytes:
        """Return the key, the certificate and the issuer's certificate as one string."""
        return self.private_key + self.certificate + self.issuer

    @classmethod
    def load(cls, path: Path, setting: str, *, now: datetime | None = None) -> Self:
        """Read this party's own credentials and check them.

        Args:
            setting: the setting that names the file, for errors.

        Raises:
            KeysError: the file is missing, readable by other users, or of the wrong kind.
            CertificateExpired: this machine's clock is outside the certificate's dates.
        """
        raw = read_secret(path, remedy=f"Set {setting} to the file that the key authority made.")
        parts = raw.split(_SEPARATOR)
        if len(parts) != 3:
            raise KeysError(
                f"{setting}: {path} must hold a private key, its certificate and the issuer's "
                "certificate.",
                remedy="Use the file that the key authority made (`fedrec provision`).",
            )
        found = cls(
            private_key=parts[0], certificate=_SEPARATOR + parts[1], issuer=_SEPARATOR + parts[2]
        )
        found.check(f"{setting}: {path}", now=now)
        return found

    def check(self, what: str, *, now: datetime | None = None) -> None:
        """Check that the parts belong together, before any call is made with them.

        Raises:
            KeysError: the key, the certificate and the issuer's certificate don't match.
            CertificateExpired: this machine's clock is outside the certificate's dates.
        """
        key = spki_of(private_key_of(self.private_key, what))
        check_certificate(self.certificate, key, self.issuer, what, now=now)

    def sign(self, statement: bytes) -> bytes:
        """Return the key's signature over a statement, for `verify_ecdsa`."""
        return private_key_of(self.private_key, "The file").sign(statement, ECDSA(hashes.SHA256()))


def check_certificate(
    certificate: bytes, key: bytes, issuer: bytes, what: str, *, now: datetime | None = None
) -> None:
    """Refuse a certificate that would fail in the handshake, with an error that says why.

    Args:
        key: the key that it must be for, as SubjectPublicKeyInfo.
        issuer: the certificate that must have issued it.
        what: the setting and the file, for errors.

    Raises:
        KeysError: the certificate is for a different key or issuer.
        CertificateExpired: this machine's clock is outside its dates.
    """
    if key_of(certificate, what) != key:
        raise KeysError(f"{what} is a certificate for another key.", remedy=_REMEDY)
    try:
        parsed(certificate, what).verify_directly_issued_by(parsed(issuer, what))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        raise KeysError(
            f"{what} is a certificate of another federation: another authority issued it.",
            remedy=_REMEDY,
        ) from None
    check_dates(certificate, what, now=now)


def expires_at(certificate: bytes) -> float:
    """Return the time at which a certificate expires, in unix seconds."""
    return parsed(certificate, "The certificate").not_valid_after_utc.timestamp()


def dates_of(certificate: bytes) -> str:
    """Return a certificate's validity period as text."""
    found = parsed(certificate, "The certificate")
    return f"from {found.not_valid_before_utc:%Y-%m-%d} to {found.not_valid_after_utc:%Y-%m-%d}"


def check_dates(certificate: bytes, what: str, *, now: datetime | None = None) -> None:
    """Refuse a certificate outside its validity period.

    Raises:
        CertificateExpired: this machine's clock is outside the dates. The message has both.
    """
    found, present = parsed(certificate, what), now or datetime.now(UTC)
    first, last = found.not_valid_before_utc, found.not_valid_after_utc
    if not first <= present <= last:
        raise CertificateExpired(
            f"{what} is valid {dates_of(certificate)}. This machine's clock reads "
            f"{present:%Y-%m-%d %H:%M} UTC.",
            remedy=_AHEAD_REMEDY if present < first else _LATE_REMEDY,
        )


@lru_cache(maxsize=16_384)
def key_of(certificate: bytes, what: str = "The certificate") -> bytes:
    """Return the public key that a certificate is for, as SubjectPublicKeyInfo.

    Raises:
        KeysError: the bytes are no certificate, or fedrec does not use keys of its kind.
    """
    try:
        key = parsed(certificate, what).public_key()
    except (UnsupportedAlgorithm, ValueError):
        raise KeysError(f"{what} is for a key of an unsupported kind.", remedy=_REMEDY) from None
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def name_of(certificate: bytes) -> str:
    """Return the display name in a certificate."""
    names = parsed(certificate, "The certificate").subject
    return str(names.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """Return the host names and addresses that a certificate covers."""
    extensions = parsed(certificate, "The certificate").extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *(str(found) for found in addresses))


@lru_cache(maxsize=16_384)
def is_invitation(certificate: bytes) -> bool:
    """Return whether a certificate is an invitation, which is valid for an application only."""
    try:
        extensions = parsed(certificate, "The certificate").extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return f"{MARK}invitation" in names.get_values_for_type(x509.UniformResourceIdentifier)


def split_certificates(raw: bytes) -> list[bytes]:
    """Split a file of concatenated PEM certificates."""
    return [_SEPARATOR + part for part in raw.split(_SEPARATOR)[1:]]


def certificate_sha256(certificate: bytes) -> bytes:
    """Return the digest by which a roster refers to its issuer's certificate."""
    return hashlib.sha256(parsed(certificate, "The issuer").public_bytes(Encoding.DER)).digest()


def verify_ecdsa(key: bytes, statement: bytes, signature: bytes) -> bool:
    """Return whether the owner of a public key signed a statement."""
    try:
        found = load_der_public_key(key)
        if isinstance(found, EllipticCurvePublicKey):
            found.verify(signature, statement, ECDSA(hashes.SHA256()))
            return True
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        pass
    return False


def parsed(certificate: bytes, what: str) -> x509.Certificate:
    """Parse a PEM certificate. Errors call it `what`."""
    try:
        return x509.load_pem_x509_certificate(certificate)
    except (ValueError, x509.InvalidVersion):
        raise KeysError(f"{what} is not a PEM certificate.", remedy=_REMEDY) from None


def private_key_of(raw: bytes, what: str) -> PrivateKey:
    """Return the P-256 private key that `pem_of` wrote.

    Raises:
        KeysError: the text holds no P-256 private key.
    """
    try:
        key = load_pem_private_key(raw, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, PrivateKey):
        raise KeysError(f"{what} holds no P-256 private key.", remedy=_REMEDY)
    return key


Role: TypeAlias = Literal["coordinator", "operator", "client", "invitation"]

YEARS_DAYS = 3652
INVITATION_DAYS = 14
_CLOCK_SKEW = timedelta(days=1)
_ISSUER_REMEDY = "Restore the key authority's folder from a backup (`fedrec keys restore`)."
_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True, crl_sign=False, digital_signature=False, content_commitment=False,
    key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
    decipher_only=False,
)  # fmt: skip
_USES = {
    "coordinator": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    "operator": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "invitation": [ExtendedKeyUsageOID.CLIENT_AUTH],
}
"""A member's certificate never passes for the coordinator's.

The coordinator also calls itself, so it has both uses.
"""


class Issuer(Secret):
    """The authority's key for certificates, and its own certificate (PEM)."""

    __slots__ = ("_key", "certificate")

    def __init__(self, key: PrivateKey, certificate: bytes) -> None:
        self._key = key
        self.certificate = certificate

    @classmethod
    def create(cls, *, now: datetime | None = None) -> Issuer:
        """Generate a key and a self-signed certificate."""
        key = generate_private_key(SECP256R1())
        names = (_name("fedrec key authority"), _name("fedrec key authority"))
        return cls(key, _signed(names, spki_of(key), key, days=YEARS_DAYS, now=now))

    @classmethod
    def from_pem(cls, raw: bytes, what: str) -> Issuer:
        """Read what `to_pem` wrote.

        Raises:
            KeysError: the text is not an issuer's key and certificate.
        """
        found = cls(private_key_of(raw, what), b"".join(split_certificates(raw)))
        if key_of(found.certificate, what) != spki_of(found._key):
            raise KeysError(
                f"{what}: the key and the certificate belong to different issuers.",
                remedy=_ISSUER_REMEDY,
            )
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
        """Return a certificate for a public key.

        Args:
            name: a display name. The key is the identity.
            key: its SubjectPublicKeyInfo.
            hosts: host names and addresses of a coordinator.
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
        """Make a key and issue the certificate for it."""
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
        raise KeysError("A certificate must be for a P-256 key.", remedy=_ISSUER_REMEDY)
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
    # Python 3.13 and newer ask for these by default, as RFC 5280 (4.2.1) does.
    own = x509.SubjectKeyIdentifier.from_public_key(public)
    issuers = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    made = made.add_extension(own, critical=False).add_extension(issuers, critical=False)
    if role is None:
        made = made.add_extension(_SIGNS_CERTIFICATES, critical=True)
    else:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage(_USES[role]), critical=False)
    return made.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64] or "unnamed")])


def _host(host: str) -> x509.GeneralName:
    try:
        # gRPC compares addresses without a zone, which is local to one machine anyway.
        return x509.IPAddress(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return x509.DNSName(host)
