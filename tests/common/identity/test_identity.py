"""A client's keys: kept private, kept whole, and bound to each other."""

import copy
import hashlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fedrec.errors import BadSignature, KeysError, SettingsError
from fedrec.identity.authority import Authority
from fedrec.identity.epoch_secrets import EpochSecrets
from fedrec.identity.identity import KEY_FILE, PUBLIC_FILE, Identity
from fedrec.identity.public import PublicIdentity, verify


def test_the_client_id_is_the_fingerprint_of_the_signing_key():
    identity = Identity.create("alice")
    assert identity.client_id == hashlib.sha256(identity.public.signing_key).hexdigest()
    assert identity.public.client_id == identity.client_id
    assert identity.public.label == "alice"


def test_saved_keys_are_the_owners_alone_and_load_again(tmp_path):
    identity = Identity.create("alice")
    identity.save(tmp_path / "new" / "folder")
    path = tmp_path / "new" / "folder" / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in path.parent.iterdir()) == [KEY_FILE, PUBLIC_FILE]
    loaded = Identity.load(path.parent)
    assert loaded.public == identity.public
    verify(identity.public.signing_key, b"said", loaded.sign(b"said"))
    assert PublicIdentity.load(path.parent / PUBLIC_FILE) == identity.public


def test_keys_are_never_overwritten(tmp_path):
    first = Identity.create()
    first.save(tmp_path)
    with pytest.raises(KeysError, match="already exists"):
        Identity.create().save(tmp_path)
    assert Identity.load(tmp_path).client_id == first.client_id
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_keys_that_others_may_read_are_refused(tmp_path, mode):
    Identity.create().save(tmp_path)
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(KeysError, match="chmod 600"):
        Identity.load(tmp_path)


def test_missing_keys_name_the_remedy(tmp_path):
    with pytest.raises(KeysError, match=r"does not exist.*restore") as caught:
        Identity.load(tmp_path)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"kind":"fedrec identity"}',
        b'{"kind":"fedrec authority","version":2}',
        b'{"kind":"fedrec identity","version":1}',
        b'{"kind":"fedrec identity","kind":"fedrec identity","version":2}',
        b'{"kind":"fedrec identity","version":2,"label":"","signing_key":"AAAA","exchange_key":""}',
        b"[" * 30_000,
        b" " * 70_000,
    ],
)
def test_damaged_keys_are_refused(tmp_path, content):
    path = tmp_path / KEY_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeysError) as caught:
        Identity.load(tmp_path)
    assert caught.value.remedy


def test_every_truncation_of_a_key_file_is_refused(tmp_path):
    Identity.create().save(tmp_path)
    path = tmp_path / KEY_FILE
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(KeysError):
            Identity.load(tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error_of_settings(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="cannot be written: Not a directory"):
        Identity.create().save(tmp_path / "file" / "below")


def test_processes_that_start_together_share_one_identity(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Identity.load_or_create(tmp_path).client_id, range(32)))
    assert len(set(found)) == 1


def test_load_or_create_writes_a_lost_public_half_again(tmp_path):
    first = Identity.load_or_create(tmp_path, "alice")
    (tmp_path / PUBLIC_FILE).unlink()
    second = Identity.load_or_create(tmp_path, "another label")
    assert second.public == first.public == PublicIdentity.load(tmp_path / PUBLIC_FILE)


def test_load_or_create_says_what_is_wrong_with_the_label(tmp_path):
    with pytest.raises(KeysError, match="label"):
        Identity.load_or_create(tmp_path, "x" * 201)


def test_secret_types_show_nothing_and_stay_here():
    group_key = b"K" * 32
    for secret in (
        Identity.create(),
        Authority.create(),
        EpochSecrets(group_key=group_key, protection_secret=b"canary"),
    ):
        text = f"{secret} {secret!r}"
        assert "canary" not in text and "KKKK" not in text
        assert not hasattr(secret, "__dict__")
        for leave in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                leave(secret)


def test_a_signature_covers_every_bit():
    identity = Identity.create()
    key, signature = identity.public.signing_key, identity.sign(b"statement")
    verify(key, b"statement", signature)
    for wrong in (
        (Identity.create().public.signing_key, b"statement", signature),
        (key, b"statemenu", signature),
        (key, b"statement", signature[:-1] + bytes([signature[-1] ^ 1])),
        (key, b"statement", b""),
        (b"short", b"statement", signature),
    ):
        with pytest.raises(BadSignature):
            verify(*wrong)


def test_the_public_half_survives_json_and_notices_an_exchanged_key():
    public = Identity.create("Zoë").public
    assert PublicIdentity.from_json(public.to_json()) == public
    other = Identity.create().public
    with pytest.raises(BadSignature):
        PublicIdentity.from_json(replace(public, exchange_key=other.exchange_key).to_json())
    with pytest.raises(BadSignature):
        PublicIdentity.from_json(replace(public, tls_key=other.tls_key).to_json())
    with pytest.raises(BadSignature):
        PublicIdentity.from_json(replace(public, label="Zoe").to_json())
    with pytest.raises(KeysError):
        PublicIdentity(label="", signing_key=b"1", exchange_key=b"2", tls_key=b"3")


def test_an_agreement_is_the_same_from_both_sides():
    one, other = Identity.create(), Identity.create()
    assert one.agree(other.public.exchange_key) == other.agree(one.public.exchange_key)
    for bad in (bytes(32), b"short"):
        with pytest.raises(KeysError):
            one.agree(bad)
