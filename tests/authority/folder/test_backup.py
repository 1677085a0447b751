"""The authority's backup: it brings everything back, on any machine, or says why not."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import pytest
from authority.folder.fake_coordinator import NOW, PASSPHRASE, PLAN, FakeCoordinator, ids, invited
from world.federation import change, keep, rotate

from fedrec.errors import InvitationUsed, KeysError
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials
from fedrec.identity.document import encode_bytes
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.plan.schema import FederationSettings
from fedrec_authority.delivery import AuthorityEvent, Delivery
from fedrec_authority.folder import backup as backup_module
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore

pytestmark = pytest.mark.slow


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guess passphrases cheaply; the real cost has a test of its own."""
    monkeypatch.setattr(backup_module, "COST", 2**10)


def test_the_drill(folder, people, tmp_path):
    """A fresh machine, the same authority, and the next epoch for everybody."""
    copy = tmp_path / "safe" / "authority.backup"
    assert back_up(folder, copy, PASSPHRASE) == 1
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    raw = copy.read_bytes()
    secret = json.loads((folder.private / "authority.key").read_text())["signing_key"]
    assert secret.encode() not in raw and people[0].client_id.encode() not in raw
    assert json.loads(raw)["cost"] == 2**17

    fresh = AuthorityFolder(tmp_path / "fresh")
    assert restore(copy, fresh, PASSPHRASE) == 1
    assert fresh.authority.public_key == folder.authority.public_key
    assert fresh.membership == folder.membership
    assert stat.S_IMODE((fresh.private / "authority.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.private.stat().st_mode) == 0o700
    assert stat.S_IMODE(fresh.private.stat().st_mode) == 0o700
    made = rotate(fresh, number=7)
    assert ids(made) == {p.client_id for p in people[:3]}
    roster, secrets = open_epoch(
        roster_json=made.roster.to_json(),
        server_context=made.server_context,
        wrapped=made.secrets_for(people[0].client_id),
        identity=people[0],
        pinned_authority_key=folder.authority.public_key,
    )
    assert roster.epoch == 7
    secrets.destroy()


@pytest.mark.usefixtures("cheap")
def test_a_backup_has_no_bundle_and_nothing_needs_one(folder, tmp_path):
    """What the wrapped secrets of an old epoch are in can be opened with a stolen member's key."""
    copy, fresh = tmp_path / "copy", AuthorityFolder(tmp_path / "fresh")
    bundle = folder.newest
    assert bundle is not None
    back_up(folder, copy, PASSPHRASE)
    inside = backup_module._opened(copy, PASSPHRASE)
    assert not any(encode_bytes(bundle.sealed_secret).encode() in raw for raw in inside.values())
    assert restore(copy, fresh, PASSPHRASE) == 1 and fresh.newest is None
    other = PLAN.model_copy(update={"federation": FederationSettings(name="books")})
    with pytest.raises(KeysError, match="belongs to the federation 'films'"):
        fresh.begin(other, 12)
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(fresh, link, events.append)
    delivery.look()
    assert [e.name for e in events] == ["coordinator found", "epoch missing"]
    assert "fedrec keys rotate" in events[-1].detail and link.installed == []
    with pytest.raises(KeysError, match="made epoch 1 already"):
        rotate(fresh, number=1)
    rotate(fresh)
    delivery.look()
    assert link.installed == [2]


@pytest.mark.usefixtures("cheap")
def test_a_killed_rotation_is_counted_in_the_backup(folder, tmp_path):
    """The number of an epoch that was made, and perhaps delivered, is not used again."""
    before = folder.membership
    rotate(folder)
    keep(folder, before)
    assert back_up(folder, tmp_path / "copy", PASSPHRASE) == 2
    fresh = AuthorityFolder(tmp_path / "fresh")
    assert restore(tmp_path / "copy", fresh, PASSPHRASE) == 2
    assert rotate(fresh).roster.epoch == 3


@pytest.mark.usefixtures("cheap")
def test_a_restore_that_was_killed_goes_on(folder, tmp_path):
    copy = tmp_path / "copy"
    back_up(folder, copy, PASSPHRASE)
    fresh = AuthorityFolder(tmp_path / "fresh")
    restore(copy, fresh, PASSPHRASE)
    (fresh.private / "membership.json").unlink()
    assert restore(copy, fresh, PASSPHRASE) == 1
    with pytest.raises(KeysError, match="already holds an authority"):
        restore(copy, fresh, PASSPHRASE)


@pytest.mark.usefixtures("cheap")
def test_backups_that_do_not_open(folder, tmp_path):
    copy = tmp_path / "copy"
    with pytest.raises(KeysError, match="at least 12"):
        back_up(folder, copy, "short")
    back_up(folder, copy, PASSPHRASE)
    with pytest.raises(KeysError, match="already exists"):
        back_up(folder, copy, PASSPHRASE)
    fresh = AuthorityFolder(tmp_path / "fresh")
    with pytest.raises(KeysError, match="does not open"):
        restore(copy, fresh, PASSPHRASE + "!")
    document = json.loads(copy.read_text())
    for field, value, words in (
        ("cost", 2**30, "more memory"),
        ("cost", 1000, "more memory"),
        ("cost", 2**11, "does not open"),
        ("salt", "A" * 22 + "==", "does not open"),
        ("sealed", "A" * 400, "does not open"),
    ):
        (tmp_path / "bad").write_text(json.dumps({**document, field: value}))
        with pytest.raises(KeysError, match=words):
            restore(tmp_path / "bad", fresh, PASSPHRASE)
    assert not fresh.path.exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "authority/rosters/../x.json", "other"])
def test_a_backup_writes_nothing_but_the_folder(name):
    assert not backup_module._is_ours(name)


def test_a_restored_authority_remembers_invitations_and_its_operator(folder, tmp_path):
    change(folder, lambda keys: keys.make_operator())
    used = invited(folder, Identity.create("a"), "a")
    unused = Credentials.load(
        change(folder, lambda keys: keys.invite("b", confirm=False, now=NOW)), "it"
    )
    change(folder, lambda keys: keys.invitations.take(used, NOW))
    back_up(folder, tmp_path / "copy", PASSPHRASE)
    other = AuthorityFolder(tmp_path / "other")
    restore(tmp_path / "copy", other, PASSPHRASE)
    thief = Identity.create("thief").public
    with pytest.raises(InvitationUsed):
        change(other, lambda keys: keys.invitations.take(replace(used, identity=thief), NOW))
    change(other, lambda keys: keys.invitations.take(SignedApplication.make(thief, unused), NOW))
    operator = Credentials.load(other.operators.own, "--operator")
    assert operator.to_pem() == folder.operators.own.read_bytes()
