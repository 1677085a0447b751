"""The authority's folder, its backup and its deliveries, without a network."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fedrec.clock import FakeClock
from fedrec.config.schema import FederationSettings, Plan
from fedrec.disk import DiskFull
from fedrec.errors import (
    FedrecError,
    InvitationUsed,
    KeysError,
    ProtocolError,
    RefusedError,
    Unreachable,
)
from fedrec.identity.application import SignedApplication
from fedrec.identity.authority import Authority
from fedrec.identity.authority_key import read_issuer
from fedrec.identity.certificates import (
    Credentials,
    certificate_sha256,
    check_certificate,
    hosts_of,
    key_of,
    split_certificates,
)
from fedrec.identity.document import encode_bytes
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.issuer import Issuer
from fedrec.identity.public import PublicIdentity
from fedrec.identity.revealer_keys import RevealerKeys
from fedrec.ids import ClientId
from fedrec.training.key_epochs import make_epoch
from fedrec.wire.admin_link import RunStatus
from fedrec_authority.delivery import AuthorityEvent, Delivery
from fedrec_authority.folder import backup as backup_module
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore
from fedrec_authority.folder.issuer_renewal import renew_issuer
from fedrec_authority.membership.members import find

pytestmark = pytest.mark.slow

NOW = 1_700_000_000
PASSPHRASE = "correct horse battery staple"
PLAN = Plan.model_validate(
    {"federation": {"name": "films"}, "protection": {"name": "none"}, "algorithm": {"dim": 4}}
)


@pytest.fixture
def people() -> list[Identity]:
    return [Identity.create(name) for name in "abcd"]


@pytest.fixture
def folder(tmp_path: Path, people: list[Identity]) -> AuthorityFolder:
    made = AuthorityFolder(tmp_path / "keys")
    members = [person.public for person in people[:3]]
    made.keep(made.begin(PLAN, 12).of_exactly(members, 100))
    made.rotate()
    return made


def ids(epoch: KeyEpoch | None) -> set[str]:
    assert epoch is not None
    return {member.client_id for member in epoch.roster.members}


def test_each_change_is_an_epoch_with_other_secrets(
    folder: AuthorityFolder, people: list[Identity]
) -> None:
    first = folder.newest
    folder.keep(folder.membership.with_member(people[3].public, 200))
    second = folder.rotate()
    folder.keep(folder.membership.without_member(people[0].client_id, 300))
    third = folder.rotate()
    assert [each.roster.epoch for each in (second, third)] == [2, 3]
    assert ids(first) == {p.client_id for p in people[:3]}
    assert ids(second) == {p.client_id for p in people}
    assert ids(third) == {p.client_id for p in people[1:]}
    keys = set()
    for epoch in (second, third):
        _, secrets = open_epoch(
            roster_json=epoch.roster.to_json(),
            server_context=epoch.server_context,
            wrapped=epoch.secrets_for(people[1].client_id),
            identity=people[1],
            pinned_authority_key=folder.load_or_create()[0].public_key,
        )
        keys.add(secrets.group_key)
    assert len(keys) == 2
    former = [m for m in folder.membership.members if not m.is_present]
    assert [(m.client_id, m.added_at, m.removed_at) for m in former] == [
        (people[0].client_id, 100, 300)
    ]


def test_nothing_here_opens_an_epoch_that_is_over(
    folder: AuthorityFolder, people: list[Identity]
) -> None:
    first = folder.newest
    assert first is not None
    wrapped = [json.loads(first.to_json())["wrapped_keys"][p.client_id] for p in people[:3]]
    folder.rotate()
    kept = [path.read_text() for path in folder.path.rglob("*") if path.is_file()]
    assert not [one for one in wrapped for text in kept if one in text]
    rosters = sorted(path.name for path in (folder.private / "rosters").iterdir())
    assert rosters == ["00000001.json", "00000002.json"]


def test_what_is_private_is_readable_by_its_owner_only(folder: AuthorityFolder) -> None:
    assert stat.S_IMODE(folder.private.stat().st_mode) == 0o700
    for name in ("authority.key", "membership.json"):
        assert stat.S_IMODE((folder.private / name).stat().st_mode) == 0o600


def test_an_epoch_made_before_a_crash_is_not_made_again(folder: AuthorityFolder) -> None:
    before = folder.membership
    folder.rotate()
    # The process died after the epoch's file and before its own record.
    folder.keep(before)
    assert folder.rotate().roster.epoch == 3


def test_numbers_only_grow(folder: AuthorityFolder) -> None:
    assert folder.rotate(number=9).roster.epoch == 9
    for number in (1, 9):
        with pytest.raises(KeysError, match="epoch 9 already"):
            folder.rotate(number=number)


def named(*starts: str) -> list[PublicIdentity]:
    """Return identities; who is found depends on their ids alone."""

    class Known(PublicIdentity):
        __slots__ = ()

        @property
        def client_id(self) -> str:  # type: ignore[override]
            return self.label.ljust(64, "0")

    keys = {"signing_key": bytes(32), "exchange_key": bytes(32), "tls_key": bytes(91)}
    return [Known(label=start, **keys) for start in starts]


def test_people_are_found_by_what_was_compared() -> None:
    known = named("a" * 16 + "1", "a" * 16 + "2", "b" * 16)
    assert find("bbbb bbbb bbbb BBBB", known, "applicants") is known[2]
    assert find("a" * 16 + "1", known, "applicants") is known[0]
    with pytest.raises(KeysError, match="fits several among the applicants") as several:
        find("a" * 16, known, "applicants")
    assert known[0].client_id in several.value.message
    assert known[2].client_id not in several.value.message
    with pytest.raises(KeysError, match="nobody's") as nobody:
        find("c" * 16, known, "applicants")
    assert all(each.client_id in nobody.value.message for each in known)
    for short in ("b" * 15, "", "z" * 16, "b" * 16 + "g"):
        with pytest.raises(KeysError, match="at least 16"):
            find(short, known, "applicants")


def test_a_swapped_exchange_key_is_not_added(
    folder: AuthorityFolder, people: list[Identity]
) -> None:
    swapped = replace(people[3].public, exchange_key=people[0].public.exchange_key)
    folder.keep_applicants([(swapped, b"")])
    with pytest.raises(FedrecError) as refused:
        folder.find_joiner(people[3].client_id)
    assert refused.value.code == "bad_signature"
    folder.keep(folder.membership.with_member(people[3].public, 5))
    tampered = (folder.private / "membership.json").read_bytes()
    good, bad = people[3].public.fields()["exchange_key"], swapped.fields()["exchange_key"]
    tampered = tampered.replace(str(good).encode(), str(bad).encode())
    (folder.private / "membership.json").write_bytes(tampered)
    with pytest.raises(FedrecError) as refused:
        folder.rotate()
    assert refused.value.code == "bad_signature"


# Backup and restore.


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guess passphrases cheaply; the real cost has a test of its own."""
    monkeypatch.setattr(backup_module, "COST", 2**10)


def test_the_drill(folder: AuthorityFolder, people: list[Identity], tmp_path: Path) -> None:
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
    assert fresh.load_or_create()[0].public_key == folder.load_or_create()[0].public_key
    assert fresh.membership == folder.membership
    assert stat.S_IMODE((fresh.private / "authority.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.private.stat().st_mode) == 0o700
    assert stat.S_IMODE(fresh.private.stat().st_mode) == 0o700
    made = fresh.rotate(number=7)
    assert ids(made) == {p.client_id for p in people[:3]}
    roster, secrets = open_epoch(
        roster_json=made.roster.to_json(),
        server_context=made.server_context,
        wrapped=made.secrets_for(people[0].client_id),
        identity=people[0],
        pinned_authority_key=folder.load_or_create()[0].public_key,
    )
    assert roster.epoch == 7
    secrets.destroy()


@pytest.mark.usefixtures("cheap")
def test_a_backup_has_no_bundle_and_nothing_needs_one(
    folder: AuthorityFolder, tmp_path: Path
) -> None:
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
        fresh.rotate(number=1)
    fresh.rotate()
    delivery.look()
    assert link.installed == [2]


@pytest.mark.usefixtures("cheap")
def test_a_killed_rotation_is_counted_in_the_backup(
    folder: AuthorityFolder, tmp_path: Path
) -> None:
    """The number of an epoch that was made, and perhaps delivered, is not used again."""
    before = folder.membership
    folder.rotate()
    folder.keep(before)
    assert back_up(folder, tmp_path / "copy", PASSPHRASE) == 2
    fresh = AuthorityFolder(tmp_path / "fresh")
    assert restore(tmp_path / "copy", fresh, PASSPHRASE) == 2
    assert fresh.rotate().roster.epoch == 3


@pytest.mark.usefixtures("cheap")
def test_a_restore_that_was_killed_goes_on(folder: AuthorityFolder, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    back_up(folder, copy, PASSPHRASE)
    fresh = AuthorityFolder(tmp_path / "fresh")
    restore(copy, fresh, PASSPHRASE)
    (fresh.private / "membership.json").unlink()
    assert restore(copy, fresh, PASSPHRASE) == 1
    with pytest.raises(KeysError, match="holds an authority already"):
        restore(copy, fresh, PASSPHRASE)


@pytest.mark.usefixtures("cheap")
def test_backups_that_do_not_open(folder: AuthorityFolder, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with pytest.raises(KeysError, match="at least 12"):
        back_up(folder, copy, "short")
    back_up(folder, copy, PASSPHRASE)
    with pytest.raises(KeysError, match="exists already"):
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
def test_a_backup_writes_nothing_but_the_folder(name: str) -> None:
    assert not backup_module._is_ours(name)


# Deliveries.


class FakeCoordinator:
    """A coordinator that takes what it is given, or fails."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch, self.next_epoch = epoch, 0
        self.busy = False
        self.waiting: list[PublicIdentity] = []
        self.installed: list[int] = []
        self.failure: FedrecError | None = None
        self.refusal: FedrecError | None = None

    def status(self) -> RunStatus:
        if self.failure is not None:
            raise self.failure
        return RunStatus(
            federation="films",
            run="r",
            protection="none",
            published_round=0,
            rounds_published=0,
            rounds_planned=3,
            rounds_abandoned=0,
            clients_seen=0,
            clients_in_roster=3,
            finished=False,
            finish_reason="",
            last_event=0,
            epoch=self.epoch,
            next_epoch=self.next_epoch,
        )

    def applicants(self) -> list[SignedApplication]:
        return self.waiting

    def install_epoch(self, bundle: bytes) -> bool:
        if self.refusal is not None:
            raise self.refusal
        number = KeyEpoch.from_json(bundle).roster.epoch
        self.installed.append(number)
        self.epoch, self.next_epoch = (self.epoch, number) if self.busy else (number, 0)
        return not self.busy


def test_the_newest_epoch_is_delivered_once_and_after_a_loss_again(
    folder: AuthorityFolder,
) -> None:
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    for _ in range(3):
        assert delivery.look()
    assert [e.name for e in events] == ["coordinator found", "epoch began"]
    folder.rotate()
    folder.rotate()
    link.busy = True
    delivery.look()
    delivery.look()
    assert link.installed == [3], "the newest only, and not again while it waits for its turn"
    link.busy, link.epoch, link.next_epoch = False, 3, 0
    delivery.look()
    assert [e.name for e in events[2:]] == ["epoch delivered", "epoch began"]
    link.failure = Unreachable("nobody")
    assert not delivery.look() and not delivery.look()
    link.failure, link.epoch = None, 1
    delivery.look()
    assert link.installed == [3, 3]
    assert [e.name for e in events[4:]][:2] == ["coordinator lost", "coordinator found"]


def test_a_full_disk_is_told_as_one_and_waited_for(
    folder: AuthorityFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    delivery.look()
    with monkeypatch.context() as patched:
        full = DiskFull("membership.json cannot be written: No space left on device.")
        patched.setattr(link, "failure", full)
        assert delivery.look() and delivery.look(), "the coordinator is there"
    assert [e.name for e in events[2:]] == ["disk full"]
    assert "Free disk space" in events[2].detail and "Tried again" in events[2].detail
    folder.rotate()
    delivery.look()
    assert [e.name for e in events[3:]] == ["epoch delivered"]


def test_an_older_folder_delivers_nothing_and_says_what_to_do(folder: AuthorityFolder) -> None:
    link, events = FakeCoordinator(epoch=6), list[AuthorityEvent]()
    Delivery(folder, link, events.append).look()
    assert link.installed == []
    assert [e.name for e in events] == ["coordinator found", "epoch missing"]
    assert "--epoch 7" in events[-1].detail


def invited(
    folder: AuthorityFolder, who: Identity, name: str, *, confirm: bool = False
) -> SignedApplication:
    """Return what somebody hands in with a new invitation."""
    path = folder.invite(name, confirm=confirm, now=NOW)
    return SignedApplication.make(who.public, Credentials.load(path, "client.invitation"))


def test_who_is_invited_is_admitted_in_one_epoch(folder: AuthorityFolder) -> None:
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    joiners = [Identity.create(f"joiner-{number}") for number in range(3)]
    link.waiting = [invited(folder, who, who.public.label) for who in joiners]
    delivery.look()
    assert {e.client_id for e in events if e.name == "member admitted"} == {
        who.client_id for who in joiners
    }
    assert link.installed == [2], "one epoch for all three, delivered at once"
    assert folder.newest is not None
    for who in joiners:
        assert folder.newest.roster.contains(who.client_id)
        assert (folder.certificates / f"{who.public.label}.crt").exists()
    delivery.look()
    assert link.installed == [2] and folder.applicants() == ()


def test_an_invitation_admits_one(folder: AuthorityFolder) -> None:
    """The coordinator relays what it likes: the authority remembers who used which invitation."""
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    path = folder.invite("hospital-d", confirm=False, now=NOW)
    invitation = Credentials.load(path, "client.invitation")
    thieves = [Identity.create(f"thief {number}") for number in range(100)]
    link.waiting = [SignedApplication.make(who.public, invitation) for who in thieves]
    delivery.look()
    (admitted,) = [e for e in events if e.name == "member admitted"]
    refused = [e for e in events if e.name == "applicant refused"]
    assert len(refused) == 99 and all("used already" in e.detail for e in refused)
    assert all(admitted.client_id in e.detail for e in refused), "its owner is told by whom"
    assert len(folder.membership.present) == 4
    # Removed, it does not come back by what it was invited with.
    folder.keep(folder.membership.without_member(ClientId(admitted.client_id), NOW))
    folder.rotate()
    delivery.look()
    assert len(folder.membership.present) == 3
    assert folder.find_joiner(admitted.client_id)[0].client_id == admitted.client_id


def test_invitations_run_out_and_are_the_authoritys_own(folder: AuthorityFolder) -> None:
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    late = FakeClock(NOW + 15 * 86_400)
    delivery = Delivery(folder, link, events.append, clock=late)
    foreign = Issuer.create().credentials("invitation", "x")
    link.waiting = [
        invited(folder, Identity.create("late"), "late"),
        SignedApplication.make(Identity.create("foreign").public, foreign),
    ]
    delivery.look()
    told = {e.label: e.detail for e in events if e.name == "applicant refused"}
    assert "ran out" in told["late"] and "no such invitation" in told["foreign"]
    assert len(folder.membership.present) == 3 and link.installed == []
    for name in ("../up", "", "a b"):
        with pytest.raises(KeysError):
            folder.invite(name, confirm=False, now=NOW)


def test_another_invitation_of_a_name_takes_the_place_of_one_that_nobody_used(
    folder: AuthorityFolder,
) -> None:
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    first = Credentials.load(folder.invite("d", confirm=False, now=NOW), "it")
    second = Credentials.load(folder.invite("d", confirm=False, now=NOW), "it")
    who, thief = Identity.create("d"), Identity.create("t")
    link.waiting = [
        SignedApplication.make(thief.public, first),
        SignedApplication.make(who.public, second),
    ]
    delivery.look()
    (refused,) = [e for e in events if e.name == "applicant refused"]
    assert refused.client_id == thief.client_id and "no such invitation" in refused.detail
    assert who.client_id in {member.client_id for member in folder.membership.present}
    with pytest.raises(KeysError, match="d has applied"):
        folder.invite("d", confirm=False, now=NOW)


def test_applicants_are_told_once_and_wait_for_people_where_that_was_asked_for(
    folder: AuthorityFolder,
) -> None:
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    joiner = Identity.create("d")
    link.waiting = [invited(folder, joiner, "d", confirm=True)]
    delivery.look()
    delivery.look()
    told = [e for e in events if e.name == "applicant"]
    assert [e.client_id for e in told] == [joiner.client_id]
    assert folder.find_joiner(joiner.client_id[:16]) == (joiner.public, b"")
    assert len(folder.membership.present) == 3
    with pytest.raises(KeysError):
        folder.find_joiner(folder.membership.present[0].client_id)


def test_a_restored_authority_remembers_invitations_and_its_operator(
    folder: AuthorityFolder, tmp_path: Path
) -> None:
    folder.make_operator()
    used = invited(folder, Identity.create("a"), "a")
    unused = Credentials.load(folder.invite("b", confirm=False, now=NOW), "it")
    folder.invitations.take(used, NOW)
    back_up(folder, tmp_path / "copy", PASSPHRASE)
    other = AuthorityFolder(tmp_path / "other")
    restore(tmp_path / "copy", other, PASSPHRASE)
    thief = Identity.create("thief").public
    with pytest.raises(InvitationUsed):
        other.invitations.take(replace(used, identity=thief), NOW)
    other.invitations.take(SignedApplication.make(thief, unused), NOW)
    operator = Credentials.load(other.operators.own, "--operator")
    assert operator.to_pem() == folder.operators.own.read_bytes()


def test_refusals_are_told_and_end_it_where_it_is_no_operator(folder: AuthorityFolder) -> None:
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    folder.rotate()
    link.refusal = ProtocolError("It is not wanted.")
    delivery.look()
    delivery.look()
    assert [e.name for e in events if "epoch" in e.name] == ["epoch refused"]
    folder.keep(folder.membership.without_member(folder.membership.present[0].client_id, 9))
    delivery.look()
    assert events[-1].name == "members changed"
    link.failure = RefusedError("no")
    with pytest.raises(RefusedError):
        delivery.look()


def test_an_authority_that_opens_sums_keeps_what_members_do_not_get(
    tmp_path: Path, people: list[Identity]
) -> None:
    protection = {"name": "bfv", "key_holder": "authority"}
    plan = PLAN.model_copy(update={"protection": PLAN.protection.model_validate(protection)})
    folder = AuthorityFolder(tmp_path / "alone")
    assert not AuthorityFolder(tmp_path / "alone").epoch_path.exists()
    folder.keep(folder.begin(plan, 12).of_exactly([p.public for p in people[:3]], 100))
    first = folder.rotate()
    second = folder.rotate()
    assert folder.reveals
    assert first.roster.revealer == second.roster.revealer == folder.revealer.load().public
    assert folder.revealer.epochs == (1, 2)
    assert folder.revealer.secret_of(1) != folder.revealer.secret_of(2)
    # Another machine makes an epoch of its own: what opens sums is in no backup.
    back_up(folder, tmp_path / "a.backup", PASSPHRASE)
    other = AuthorityFolder(tmp_path / "other")
    assert restore(tmp_path / "a.backup", other, PASSPHRASE) == 2
    assert not other.revealer.folder.exists()
    third = other.rotate()
    assert third.roster.epoch == 3 and third.roster.revealer != second.roster.revealer
    assert other.revealer.epochs == (3,)


def test_an_epoch_for_the_other_key_holder_is_not_made(
    tmp_path: Path, people: list[Identity]
) -> None:
    members = [person.public for person in people[:3]]
    keys = RevealerKeys(tmp_path / "revealer")
    with pytest.raises(KeysError, match="takes no revealer, but one was given"):
        make_epoch(Authority.create(), PLAN, 12, members, number=1, revealer=keys)
    assert keys.epochs == ()


def test_another_issuer_takes_everything_back_that_the_old_one_gave(
    folder: AuthorityFolder,
) -> None:
    folder.serve_at(["fedrec.example", "10.0.0.7"])
    folder.make_operator()
    old, _ = folder.load_or_create()
    used = invited(folder, Identity.create("a"), "a")
    folder.invitations.take(used, NOW)
    folder.invite("late", confirm=False, now=NOW)
    folder.operators.make(old.issuer, "maria", folder.path / "maria.pem")
    assert folder.rotate().roster.ca_sha256 == certificate_sha256(old.issuer.certificate)

    renewed = renew_issuer(folder)
    made = folder.rotate().roster
    new, _ = folder.load_or_create()
    assert (renewed.operators, renewed.invited) == (("maria",), ("late",))
    assert new.public_key == old.public_key and made.authority_key == old.public_key
    assert made.ca_sha256 == certificate_sha256(new.issuer.certificate)
    assert read_issuer(folder.public_key_path) == new.issuer.certificate
    served = Credentials.load(folder.coordinator_path, "it")
    assert {"fedrec.example", "10.0.0.7"} <= set(hosts_of(served.certificate))
    own = Credentials.load(folder.operators.own, "it")
    assert folder.operators.list.read_bytes() == own.certificate
    for path in folder.certificates.glob("*.crt"):
        check_certificate(path.read_bytes(), key_of(path.read_bytes()), new.issuer.certificate, "")
    assert len(list(folder.certificates.glob("*.crt"))) == len(made.members)
    assert folder.invitations.unused(NOW) == ()
    with pytest.raises(InvitationUsed):
        other = SignedApplication.make(Identity.create("b").public, credentials_of(folder, "a"))
        folder.invitations.take(other, NOW)


def credentials_of(folder: AuthorityFolder, name: str) -> Credentials:
    return Credentials.load(folder.path / "invitations" / f"{name}.pem", "it")


def test_operators_are_listed_by_name(folder: AuthorityFolder) -> None:
    folder.make_operator()
    issuer = folder.load_or_create()[0].issuer
    own = folder.operators.list.read_bytes()
    for _ in range(2):
        folder.operators.make(issuer, "maria", folder.path / "maria.pem")
    assert folder.operators.names == ("maria",)
    listed = split_certificates(folder.operators.list.read_bytes())
    assert listed == [own, Credentials.load(folder.path / "maria.pem", "it").certificate]
    for wrong in ("operator", "nobody"):
        with pytest.raises(KeysError):
            folder.operators.remove(wrong)
    with pytest.raises(KeysError, match="own process"):
        folder.operators.make(issuer, "operator", folder.path / "x.pem")
    folder.operators.remove("maria")
    assert folder.operators.list.read_bytes() == own
