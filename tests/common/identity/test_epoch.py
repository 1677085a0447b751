"""A key epoch from the authority over the coordinator to its members."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedrec.errors import BadSignature, KeysError, NotInRoster, TooLarge
from fedrec.identity.authority import Authority
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import EpochSecrets, open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId

CONTEXT = b"keyless context"
SECRET = b"the protection's secret"


def make(
    authority: Authority,
    members: list[Identity],
    epoch: int = 1,
    revealer: PublicIdentity | None = None,
) -> KeyEpoch:
    return authority.new_epoch(
        federation="movies",
        epoch=epoch,
        members=[member.public for member in members],
        minimum_summands=3,
        protection="bfv",
        protection_fingerprint="ab" * 32,
        server_context=CONTEXT,
        protection_secret=SECRET,
        revealer=revealer,
    )


def open_bundle(
    bundle: KeyEpoch, identity: Identity, authority: Authority, **other: bytes
) -> tuple[Roster, EpochSecrets]:
    arguments: dict[str, Any] = {
        "roster_json": bundle.roster.to_json(),
        "server_context": bundle.server_context,
        "wrapped": bundle.secrets_for(identity.client_id),
        "identity": identity,
        "pinned_authority_key": authority.public_key,
    }
    return open_epoch(**arguments | other)


@pytest.fixture
def authority():
    return Authority.create()


@pytest.fixture
def members():
    return [Identity.create(f"member {i}") for i in range(4)]


@pytest.fixture
def bundle(authority, members):
    return make(authority, members)


def test_every_member_opens_the_same_secrets(authority, members, bundle, tmp_path):
    bundle.save(tmp_path / "epoch-1.json")
    relayed = KeyEpoch.load(tmp_path / "epoch-1.json")
    assert relayed == bundle
    opened = [open_bundle(relayed, member, authority) for member in members]
    assert {roster.minimum_summands for roster, _ in opened} == {3}
    assert len({secrets.group_key for _, secrets in opened}) == 1
    assert {secrets.protection_secret for _, secrets in opened} == {SECRET}


def test_the_bundle_shows_no_secret(authority, members, bundle):
    _, secrets = open_bundle(bundle, members[0], authority)
    relayed = bundle.to_json() + b"".join(bundle.secrets_for(m.client_id) for m in members)
    relayed += b"".join(bundle.wrapped_keys.values()) + bundle.sealed_secret
    assert SECRET not in relayed and secrets.group_key not in relayed


def test_what_a_coordinator_imports_holds_no_secret_type():
    program = (
        "import sys, fedrec.identity.epoch, fedrec.identity.roster\n"
        "found = [n for n in sys.modules if n in {'fedrec.identity.' + x for x in\n"
        "    ('identity', 'secret', 'epoch_secrets', 'authority', 'sealing')}]\n"
        "sys.exit(repr(found) if found else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_authority_survives_a_restart(authority, members, tmp_path):
    authority.save(tmp_path)
    loaded = Authority.load(tmp_path)
    assert loaded.public_key == authority.public_key
    open_bundle(make(loaded, members), members[0], authority)
    with pytest.raises(KeysError, match="already exists"):
        Authority.create().save(tmp_path)
    with pytest.raises(KeysError, match="does not exist"):
        Authority.load(tmp_path / "elsewhere")


def test_a_stranger_is_not_in_the_roster(authority, bundle):
    stranger = Identity.create()
    assert bundle.secrets_for(stranger.client_id) == b""
    assert not bundle.roster.contains(stranger.client_id)
    with pytest.raises(NotInRoster, match=r"identity\.pub\.json"):
        open_bundle(bundle, stranger, authority)


def test_another_authority_is_refused(bundle, members):
    with pytest.raises(BadSignature, match="data owners"):
        open_bundle(bundle, members[0], Authority.create())


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, epoch=2),
        lambda r: replace(r, federation="other"),
        lambda r: replace(r, minimum_summands=1),
        lambda r: replace(r, members=r.members[:-1]),
        lambda r: replace(r, members=(*r.members, Identity.create().public)),
        lambda r: replace(r, protection="none"),
        lambda r: replace(r, protection_fingerprint="cd" * 32),
        lambda r: replace(r, context_sha256=bytes(32)),
        lambda r: replace(r, secrets_sha256=bytes(32)),
        lambda r: replace(r, signature=bytes(64)),
        lambda r: replace(r, signature=b""),
    ],
)
def test_a_changed_roster_is_refused(authority, bundle, change):
    changed = Roster.from_json(change(bundle.roster).to_json())
    with pytest.raises(BadSignature):
        changed.verify(authority.public_key)
    with pytest.raises(BadSignature):
        replace(bundle, roster=changed)


def test_secrets_that_the_authority_did_not_make_are_refused(authority, members, bundle):
    # A coordinator knows every public key, so it can wrap secrets of its own.
    forged = make(Authority.create(), members)
    with pytest.raises(BadSignature, match="not the ones"):
        open_bundle(bundle, members[0], authority, wrapped=forged.secrets_for(members[0].client_id))


def test_parts_of_another_epoch_are_refused(authority, members, bundle):
    me, other = members[0], members[1]
    later = make(authority, members, epoch=2)
    whole = bundle.secrets_for(me.client_id)
    for wrapped in (
        b"",
        b"short",
        bytes(20),
        whole[:-1],
        whole + b"x",
        later.secrets_for(me.client_id),
        bundle.secrets_for(other.client_id),
    ):
        with pytest.raises(KeysError) as caught:
            open_bundle(bundle, me, authority, wrapped=wrapped)
        assert caught.value.remedy
    with pytest.raises(KeysError, match="context"):
        open_bundle(bundle, me, authority, server_context=b"other")


def test_destroyed_secrets_are_gone():
    secrets = EpochSecrets(group_key=bytes(32), protection_secret=SECRET)
    secrets.destroy()
    secrets.destroy()
    for name in ("group_key", "protection_secret"):
        with pytest.raises(KeysError, match="destroyed"):
            getattr(secrets, name)


def test_the_authority_refuses_members_twice_and_without_proof(authority, members):
    with pytest.raises(KeysError, match="twice"):
        make(authority, [members[0], members[0]])
    assert make(authority, []).roster.members == (), "a federation begins before anybody applied"
    mallory = Identity.create().public
    swapped = replace(members[0].public, exchange_key=mallory.exchange_key)
    with pytest.raises(BadSignature):
        authority.new_epoch(
            federation="movies",
            epoch=1,
            members=[swapped],
            minimum_summands=1,
            protection="none",
            protection_fingerprint="",
            server_context=b"",
            protection_secret=b"",
        )


def test_a_roster_is_sorted_frozen_and_canonical(bundle):
    roster = bundle.roster
    ids = [member.client_id for member in roster.members]
    assert ids == sorted(ids)
    assert all(roster.contains(i) and roster.member(i).client_id == i for i in ids)
    assert replace(roster, members=roster.members[::-1]) == roster
    assert Roster.from_json(roster.to_json()) == roster
    with pytest.raises(FrozenInstanceError):
        roster.epoch = 2  # type: ignore[misc]  # the point of the test
    loose = json.dumps(json.loads(roster.to_json())).encode()
    with pytest.raises(KeysError, match="canonical"):
        Roster.from_json(loose)
    with pytest.raises(KeysError, match="unknown fields: extra"):
        Roster.from_json(json.dumps({**json.loads(roster.to_json()), "extra": 1}).encode())
    with pytest.raises(TooLarge):
        Roster.from_json(b" " * (16 * 1024 * 1024 + 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", 0),
        ("epoch", True),
        ("epoch", 1.0),
        ("epoch", 2**70),
        ("minimum_summands", 0),
        ("members", {}),
        ("members", [1]),
        ("federation", ""),
        ("federation", "a\nb"),
        ("federation", "\ud800"),
        ("protection_fingerprint", "xyz"),
        ("context_sha256", "AAAA"),
        ("signature", "AAAA"),
        ("signature", "not base64!"),
        ("authority_key", None),
    ],
)
def test_damaged_roster_fields_are_refused(bundle, field, value):
    fields = json.loads(bundle.roster.to_json())
    fields[field] = value
    raw = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(KeysError):
        Roster.from_json(raw)


def test_a_bundle_whose_parts_do_not_fit_is_refused(bundle):
    with pytest.raises(KeysError, match="context"):
        replace(bundle, server_context=b"other")
    with pytest.raises(KeysError, match="do not match the members"):
        replace(bundle, wrapped_keys={ClientId("0" * 64): b""})
    fields = json.loads(bundle.to_json())
    for damage in ({"roster": "\ud800"}, {"wrapped_keys": []}, {"sealed_secret": 1}):
        with pytest.raises(KeysError):
            KeyEpoch.from_json(json.dumps({**fields, **damage}).encode())


def test_a_client_with_new_exchange_key_is_told_so(authority, members):
    me = members[0]
    other = Identity.create()
    # The same signing key beside another exchange key, as after a botched restore.
    restored = Identity(
        label="",
        signing_key=me._signing_key,
        exchange_key=other._exchange_key,
        tls_key=me._tls_key,
    )
    with pytest.raises(KeysError, match="another exchange key"):
        open_bundle(make(authority, members), restored, authority)


def test_the_commitment_names_federation_epoch_and_secrets():
    def committed(key: bytes, secret: bytes, federation: str, epoch: int) -> bytes:
        return EpochSecrets(group_key=key, protection_secret=secret).commitment(federation, epoch)

    a, b = bytes(32), b"\x01" * 32
    found = {
        committed(a, b"s", "f", 1),
        committed(b, b"s", "f", 1),
        committed(a, b"t", "f", 1),
        committed(a, b"s", "g", 1),
        committed(a, b"s", "f", 2),
    }
    assert len(found) == 5


def test_the_context_digest_is_plain_sha256(bundle):
    assert bundle.roster.context_sha256 == hashlib.sha256(CONTEXT).digest()
    assert all(isinstance(member, PublicIdentity) for member in bundle.roster.members)


def test_a_revealer_is_named_by_the_authority_and_is_no_member(authority, members):
    revealer = Identity.create("revealer")
    made = make(authority, members, revealer=revealer.public)
    again = Roster.from_json(made.roster.to_json())
    assert again == made.roster and again.key_holder == "authority"
    assert again.revealer == revealer.public
    assert not again.contains(revealer.client_id)
    with pytest.raises(NotInRoster):
        again.member(revealer.client_id)
    assert again.holder(revealer.client_id) == revealer.public
    assert again.holder(members[0].client_id) == members[0].public
    assert len(made.wrapped_keys) == len(members) + 1
    opened = [open_bundle(made, who, authority) for who in (*members, revealer)]
    assert len({secrets.group_key for _, secrets in opened}) == 1
    assert {secrets.protection_secret for _, secrets in opened} == {SECRET}
    for other in (None, Identity.create("another").public):
        forged = replace(again, revealer=other)
        with pytest.raises(BadSignature):
            forged.verify(authority.public_key)


def test_a_roster_without_a_revealer_is_as_it_was(bundle):
    assert b"revealer" not in bundle.roster.to_json()
    assert bundle.roster.key_holder == "members"


@pytest.mark.parametrize(
    "field", ["the same identity", "the same exchange key", "the same TLS key"]
)
def test_a_member_is_not_the_revealer(authority, members, field):
    other, fresh = members[0], Identity.create()
    if field != "the same identity":
        other = Identity(
            label="",
            signing_key=Ed25519PrivateKey.generate(),
            exchange_key=(other if "exchange" in field else fresh)._exchange_key,
            tls_key=(other if "TLS" in field else fresh)._tls_key,
        )
    with pytest.raises(KeysError, match="appears twice"):
        make(authority, members, revealer=other.public)
