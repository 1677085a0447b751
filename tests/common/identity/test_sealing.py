"""Sealing: what was changed, moved or addressed to another party does not open."""

import hashlib
import hmac
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import BadSignature, KeysError, MalformedUpdate
from fedrec.identity.identity import Identity
from fedrec.identity.sealing import (
    SEAL_OVERHEAD_BYTES,
    derive,
    keyed_tag,
    seal,
    unseal,
    unwrap,
    wrap,
)

KEY = secrets.token_bytes(32)
IDENTITY = Identity.create()


@pytest.mark.parametrize(
    ("key", "salt", "info", "expected"),
    [
        (
            "0b" * 22,
            "000102030405060708090a0b0c",
            "f0f1f2f3f4f5f6f7f8f9",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            "0b" * 22,
            "",
            "",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
    ids=["A.1", "A.3, no salt, no info"],
)
def test_derivation_is_that_of_rfc_5869(key, salt, info, expected):
    found = derive(
        bytes.fromhex(key), salt=bytes.fromhex(salt), info=bytes.fromhex(info), length=42
    )
    assert found.hex() == expected


@given(st.binary(max_size=200), st.text(max_size=20), st.binary(max_size=40))
def test_what_is_sealed_opens(plaintext, purpose, context):
    sealed = seal(KEY, purpose, context, plaintext)
    assert len(sealed) == len(plaintext) + SEAL_OVERHEAD_BYTES
    assert unseal(KEY, purpose, context, sealed) == plaintext
    wrapped = wrap(IDENTITY.public.exchange_key, context, plaintext)
    assert len(wrapped) == len(plaintext) + SEAL_OVERHEAD_BYTES
    assert unwrap(IDENTITY, context, wrapped) == plaintext


def test_no_two_seals_are_alike():
    assert seal(KEY, "p", b"c", b"same") != seal(KEY, "p", b"c", b"same")
    key = IDENTITY.public.exchange_key
    assert wrap(key, b"c", b"same") != wrap(key, b"c", b"same")


@pytest.mark.parametrize(
    ("sealed", "opens"),
    [
        (seal(KEY, "p", b"c", b"text"), lambda s: unseal(KEY, "p", b"c", s)),
        (wrap(IDENTITY.public.exchange_key, b"c", b"text"), lambda s: unwrap(IDENTITY, b"c", s)),
    ],
    ids=["seal", "wrap"],
)
def test_every_changed_bit_and_every_cut_is_refused(sealed, opens):
    assert opens(sealed) == b"text"
    # X25519 ignores one bit of a public key (RFC 7748, section 5); the derivation binds it.
    for position in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises((BadSignature, MalformedUpdate)):
            opens(bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises((BadSignature, MalformedUpdate)):
            opens(sealed[:length])


def test_another_version_is_named():
    sealed = seal(KEY, "p", b"c", b"text")
    with pytest.raises(MalformedUpdate, match="version 2"):
        unseal(KEY, "p", b"c", b"\x02" + sealed[1:])


def test_another_key_purpose_context_or_recipient_opens_nothing():
    sealed = seal(KEY, "p", b"c", b"text")
    for key, purpose, context in (
        (secrets.token_bytes(32), "p", b"c"),
        (KEY, "q", b"c"),
        (KEY, "p", b"d"),
        (KEY, "pc", b""),
    ):
        with pytest.raises(BadSignature):
            unseal(key, purpose, context, sealed)
    wrapped = wrap(IDENTITY.public.exchange_key, b"c", b"text")
    with pytest.raises(BadSignature):
        unwrap(Identity.create(), b"c", wrapped)
    with pytest.raises(BadSignature):
        unwrap(IDENTITY, b"d", wrapped)


def test_keys_that_are_none_are_refused():
    with pytest.raises(KeysError):
        seal(b"short", "p", b"c", b"text")
    with pytest.raises(KeysError):
        keyed_tag(b"short", "p", b"data")
    with pytest.raises(KeysError):
        wrap(bytes(32), b"c", b"text")
    with pytest.raises(BadSignature):
        unwrap(IDENTITY, b"c", b"\x01" + bytes(32) + bytes(20))


def test_a_tag_depends_on_key_purpose_and_data():
    tags = {
        keyed_tag(key, purpose, data)
        for key in (KEY, secrets.token_bytes(32))
        for purpose in ("p", "q")
        for data in (b"", b"data")
    }
    assert len(tags) == 8 and {len(tag) for tag in tags} == {32}


def test_a_tag_is_hmac_under_a_derived_key():
    # HKDF by hand: extract with a salt of zeros, one round of expansion.
    extracted = hmac.new(bytes(32), KEY, hashlib.sha256).digest()
    info = b"\0\0\0\0\0\0\0\rfedrec tag v1" + b"\0\0\0\0\0\0\0\x01p"
    key = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
    assert keyed_tag(KEY, "p", b"data") == hmac.new(key, b"data", hashlib.sha256).digest()
