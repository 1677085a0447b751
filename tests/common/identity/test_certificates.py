"""The self-signed certificate: names its hosts, is kept from being replaced, and readable."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from fedrec.errors import KeysError, SettingsError
from fedrec.identity.certificates import write_certificate

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def test_it_names_every_host_and_lasts_as_long_as_asked(tmp_path):
    path = write_certificate(tmp_path, ["127.0.0.1", "rec.example"], days=10, now=NOW)
    found = x509.load_pem_x509_certificate(path.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["rec.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]
    assert found.not_valid_after_utc == NOW + timedelta(days=10)
    assert found.issuer == found.subject
    assert (tmp_path / "coordinator.key").stat().st_mode & 0o077 == 0


def test_a_key_is_never_replaced_and_a_host_is_needed(tmp_path):
    write_certificate(tmp_path, ["a"], days=1, now=NOW)
    with pytest.raises(KeysError):
        write_certificate(tmp_path, ["a"], days=1, now=NOW)
    with pytest.raises(SettingsError, match="--host"):
        write_certificate(tmp_path / "other", [], days=1, now=NOW)
