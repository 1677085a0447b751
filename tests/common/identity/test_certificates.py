"""Certificates: for whom, by whom, how long, and what is said of those that do not fit."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedrec.errors import CertificateExpired, KeysError
from fedrec.identity.certificates import (
    Credentials,
    Issuer,
    certificate_sha256,
    check_certificate,
    is_invitation,
    key_of,
    verify_ecdsa,
)
from fedrec.identity.document import write_secret
from fedrec.identity.identity import Identity

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
WHAT = "client.certificate: a.crt"


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


@pytest.mark.parametrize(
    ("role", "days", "serves"),
    [
        ("coordinator", 3652, True),
        ("operator", 3652, False),
        ("client", 3652, False),
        ("invitation", 14, False),
    ],
)
def test_each_role_has_its_dates_and_only_the_coordinator_serves(role, days, serves):
    issuer = Issuer.create(now=NOW)
    hosts = ["127.0.0.1", "rec.example"] if serves else []
    made = issuer.credentials(role, "somebody", hosts=hosts, now=NOW)
    found = parsed(made.certificate)
    assert found.not_valid_after_utc == NOW + timedelta(days=days)
    assert found.not_valid_before_utc < NOW
    uses = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert (ExtendedKeyUsageOID.SERVER_AUTH in uses) == serves
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == hosts[1:]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(host) for host in hosts[:1]
    ]
    assert is_invitation(made.certificate) == (role == "invitation")
    made.check(WHAT, now=NOW)


def test_the_issuer_signs_certificates_of_parties_only_and_lasts_ten_years():
    issuer = Issuer.create(now=NOW)
    found = parsed(issuer.certificate)
    limits = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert limits.ca and limits.path_length == 0
    assert found.not_valid_after_utc == NOW + timedelta(days=3652)
    again = Issuer.from_pem(issuer.to_pem(), "it")
    assert again.certificate == issuer.certificate
    again.credentials("client", "c", now=NOW).check(WHAT, now=NOW)
    digest = certificate_sha256(issuer.certificate)
    assert digest == certificate_sha256(again.certificate)
    assert digest != certificate_sha256(Issuer.create(now=NOW).certificate)
    other = Issuer.create()
    with pytest.raises(KeysError, match="different issuers"):
        Issuer.from_pem(issuer.to_pem().replace(issuer.certificate, other.certificate), "it")
    for raw in (b"", b"junk", other.certificate):
        with pytest.raises(KeysError, match="private key"):
            Issuer.from_pem(raw, "it")


@pytest.mark.parametrize(
    ("now", "fits"),
    [
        (NOW - timedelta(days=2), False),
        (NOW - timedelta(hours=1), True),
        (NOW, True),
        (NOW + timedelta(days=3651), True),
        (NOW + timedelta(days=3653), False),
    ],
)
def test_dates_are_told_with_the_clock(now, fits):
    made = Issuer.create(now=NOW).credentials("client", "c", now=NOW)
    if fits:
        made.check(WHAT, now=now)
        return
    with pytest.raises(CertificateExpired, match=r"client\.certificate.*2036-01-02.*clock") as seen:
        made.check(WHAT, now=now)
    assert f"{now:%Y-%m-%d}" in seen.value.message and seen.value.code == "certificate_expired"


def test_another_key_or_another_issuer_is_named():
    issuer, other = Issuer.create(), Issuer.create()
    mine, theirs = issuer.credentials("client", "c"), issuer.credentials("client", "c")
    key = key_of(mine.certificate)
    check_certificate(mine.certificate, key, issuer.certificate, WHAT)
    with pytest.raises(KeysError, match="another key"):
        check_certificate(theirs.certificate, key, issuer.certificate, WHAT)
    # Both call themselves the same: the signature decides, not the name.
    with pytest.raises(KeysError, match="another federation"):
        check_certificate(mine.certificate, key, other.certificate, WHAT)
    for junk in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(KeysError, match="not a PEM certificate"):
            check_certificate(junk, key, issuer.certificate, WHAT)


def test_a_file_of_ones_own_survives_the_disk_and_is_checked(tmp_path):
    issuer = Issuer.create()
    made = issuer.credentials("operator", "op")
    write_secret(tmp_path / "operator.pem", made.to_pem())
    found = Credentials.load(tmp_path / "operator.pem", "--operator")
    assert found.to_pem() == made.to_pem()
    assert "PRIVATE" not in repr(found)
    swapped = Credentials(
        private_key=made.private_key,
        certificate=issuer.credentials("operator", "op").certificate,
        issuer=issuer.certificate,
    )
    write_secret(tmp_path / "swapped.pem", swapped.to_pem())
    write_secret(tmp_path / "short.pem", made.private_key + made.certificate)
    for name, seen in (("swapped", "another key"), ("short", "must hold"), ("no", "exist")):
        with pytest.raises(KeysError, match=seen):
            Credentials.load(tmp_path / f"{name}.pem", "--operator")
    (tmp_path / "operator.pem").chmod(0o644)
    with pytest.raises(KeysError, match="mode 0644"):
        Credentials.load(tmp_path / "operator.pem", "--operator")


def test_signatures_are_of_the_key_that_made_them():
    made = Issuer.create().credentials("invitation", "a")
    key = key_of(made.certificate)
    signature = made.sign(b"statement")
    assert verify_ecdsa(key, b"statement", signature)
    assert not verify_ecdsa(key, b"statemenu", signature)
    assert not verify_ecdsa(key, b"statement", b"")
    assert not verify_ecdsa(Identity.create().public.tls_key, b"statement", signature)
    ed25519 = Identity.create()._signing_key.public_key()
    der = ed25519.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for strange in (b"", b"junk", der):
        assert not verify_ecdsa(strange, b"statement", signature)


def test_an_identitys_certificate_is_for_its_tls_key():
    issuer, identity = Issuer.create(), Identity.create()
    public = identity.public
    certificate = issuer.issue("client", public.client_id, public.tls_key)
    identity.credentials(certificate, issuer.certificate).check(WHAT)
    with pytest.raises(KeysError, match="another key"):
        Identity.create().credentials(certificate, issuer.certificate).check(WHAT)
    with pytest.raises(KeysError, match="P-256"):
        issuer.issue(
            "client",
            "c",
            Identity.create()
            ._signing_key.public_key()
            .public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        )
