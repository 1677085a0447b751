"""Backups of an authority's folder, records that are lost and disks that are full."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace

import pytest
from authority.folder.fake_coordinator import NOW, PASSPHRASE, PLAN, FakeCoordinator, ids, invited
from authority.folder.test_folder_changes import is_one_chain
from filling_disk import FAR, Disk
from world.federation import change, keep, rotate

from fedrec.durable import DiskFull
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
from fedrec_authority.folder.folder_changes import FolderChanges

pytestmark = pytest.mark.slow


@pytest.fixture
def cheap(monkeypatch):
    """Guess passphrases cheaply; the real cost has a test of its own."""
    monkeypatch.setattr(backup_module, "COST", 2**10)


def test_the_drill(folder, people, tmp_path):
    """A fresh machine, the same authority, and the next epoch for every client."""
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
    with pytest.raises(KeysError, match="already made epoch 1"):
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


KEYS = ("authority/authority.key", "authority.pub.json")
RECORD = "authority/membership.json"
ROSTERS = "authority/rosters"


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("lock")
    }


@pytest.mark.parametrize(
    "lost",
    [
        KEYS,
        (*KEYS, RECORD),
        (*KEYS, "epoch.json"),
        (*KEYS, RECORD, ROSTERS),
        (ROSTERS,),
        (ROSTERS, "epoch.json"),
        ("authority/rosters/00000001.json",),
    ],
    ids="+".join,
)
def test_what_is_left_is_not_made_into_another_federation(folder, tmp_path, lost):
    back_up(folder, tmp_path / "backup", PASSPHRASE)
    for name in lost:
        path = folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(folder.path)
    with pytest.raises(KeysError) as refused:
        # What `fedrec provision` does with a folder.
        change(folder, lambda keys: keys.load_or_create())
        keep(folder, folder.begin(PLAN, 12))
        rotate(folder)
    assert str(folder.path) in refused.value.message
    assert "fedrec keys restore" in refused.value.remedy
    assert contents(folder.path) == before
    again = AuthorityFolder(tmp_path / "restored")
    restore(tmp_path / "backup", again, PASSPHRASE)
    assert rotate(again).roster.epoch == 2


def test_a_lost_record_names_the_way_back(folder):
    (folder.path / RECORD).unlink()
    with pytest.raises(KeysError, match=r"membership\.json") as refused:
        rotate(folder)
    assert "fedrec keys restore" in refused.value.remedy


def leaves(value, *path):
    """Yield the path of each value that has no parts."""
    if not isinstance(value, dict | list):
        yield path
        return
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, *path, name)


@pytest.mark.parametrize("name", ["membership", "invitations", "applicants"])
def test_another_value_in_any_field_of_a_record_is_noticed(folder, people, name):
    change(folder, lambda keys: keys.invite("hospital", confirm=False, now=1_800_000_000))
    change(folder, lambda keys: keys.keep_applicants([(people[3].public, b"")]))
    path = folder.private / f"{name}.json"
    raw = path.read_bytes()
    every = list(leaves(json.loads(raw)))
    assert len(every) > 4
    for *way, last in every:
        content = inner = json.loads(raw)
        for step in way:
            inner = inner[step]
        found = inner[last]
        inner[last] = found + 1 if isinstance(found, int) else f"{found}A"
        path.write_text(json.dumps(content))
        with pytest.raises(KeysError, match=str(path)) as refused:
            assert folder.membership and folder.invitations.unused(0) and folder.applicants()
        assert "estore" in refused.value.remedy or last in ("kind", "version")
    # Of an earlier release, which wrote no digest.
    path.write_text(json.dumps({k: v for k, v in json.loads(raw).items() if k != "sha256"}))
    assert folder.membership and folder.applicants()


LATER = 1_800_000_000


CHANGES: dict[str, Callable[[FolderChanges, list[Identity]], object]] = {
    "rotate": lambda folder, people: folder.rotate(),
    "remove": lambda folder, people: folder.keep(
        folder.membership.without_member(people[0].client_id, LATER)
    ),
    "invite": lambda folder, people: folder.invite("hospital", confirm=False, now=LATER),
    "applicants": lambda folder, people: folder.keep_applicants([(people[3].public, b"")]),
    "operator": lambda folder, people: folder.make_operator(),
    "serve": lambda folder, people: folder.serve_at(["host.example"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_finds_no_space_is_made_by_the_next_call(folder, people, tmp_path, name):
    def attempt(path, good):
        shutil.copytree(folder.path, path)
        disk, copy = Disk(path, [good], refusals=FAR), AuthorityFolder(path)
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            if good == FAR:
                change(copy, lambda keys: CHANGES[name](keys, people))
                return disk
            with pytest.raises(DiskFull, match=f"{path}.*No space left on device"):
                change(copy, lambda keys: CHANGES[name](keys, people))
            # What was there is whole, and is read without space.
            assert copy.newest is not None and copy.membership.present
        change(copy, lambda keys: CHANGES[name](keys, people))
        return disk

    n_writes = attempt(tmp_path / "undisturbed", FAR).writes
    assert n_writes > 3
    whole = files(tmp_path / "undisturbed")
    for good in range(n_writes):
        path = tmp_path / f"full-{good}"
        attempt(path, good)
        found = AuthorityFolder(path)
        assert is_one_chain(found, found.last_epoch)
        assert files(path) == whole


def files(folder):
    """Return the names of all files but rosters: a change that failed may leave one more."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "/rosters/" not in name}
