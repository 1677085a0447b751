"""What fuzzing found once: each input again, with the error that it gets since."""

import base64
import json

import pytest
from fuzz.targets import target

from fedrec.errors import KeysError
from fedrec.identity.certificates import Issuer, check_certificate, key_of
from fedrec.identity.document import Document

HALF = "\ud800"
"""JSON may name it; UTF-8 cannot write it."""


def test_half_a_character_in_an_enclosed_document():
    (made,) = target("application").seeds
    content = json.loads(made)
    content["identity"] += HALF
    with pytest.raises(KeysError, match="identity"):
        target("application").read(json.dumps(content).encode())
    with pytest.raises(KeysError, match="'a' is not a string"):
        Document({"a": HALF}, "It").json_text("a")


def test_a_certificate_for_a_key_of_another_kind():
    pem = Issuer.create().certificate
    # The curve's name, 1.2.840.10045.3.1.7, with another last number.
    prime256v1 = bytes.fromhex("2a8648ce3d030107")
    other = _der_changed(pem, prime256v1, prime256v1[:-1] + b"\x08")
    with pytest.raises(KeysError, match="unsupported kind"):
        key_of(other, "what was sent")
    with pytest.raises(KeysError, match="another authority"):
        check_certificate(pem, key_of(pem), other, "what was sent")


def test_a_certificate_of_another_version():
    # X.509 v3 is written as 2, in a field of its own at the beginning.
    other = _der_changed(
        Issuer.create().certificate, b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01"
    )
    with pytest.raises(KeysError, match="not a PEM certificate"):
        key_of(other, "what was sent")


def _der_changed(pem, old, new):
    lines = pem.strip().splitlines()
    der = base64.b64decode(b"".join(lines[1:-1]))
    assert old in der
    changed = base64.encodebytes(der.replace(old, new))
    return lines[0] + b"\n" + changed + lines[-1] + b"\n"
