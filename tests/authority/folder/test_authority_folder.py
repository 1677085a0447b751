"""An authority's folder, the sums it opened and what it delivers."""

import json
import stat
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from authority.folder.fake_coordinator import (
    NOW,
    PASSPHRASE,
    PLAN,
    FakeCoordinator,
    credentials_of,
    ids,
    invited,
)
from client.state.test_lost_database import check_earlier_releases, check_every_cell
from client.state.test_private_store import PIN
from world.federation import change, keep, rotate

from fedrec.durable import DiskFull
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
from fedrec.identity.certificates import (
    Credentials,
    certificate_sha256,
    check_certificate,
    hosts_of,
    key_of,
    split_certificates,
)
from fedrec.identity.epoch_secrets import RevealerKeyChanges, open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity, read_issuer
from fedrec.ids import RoundId
from fedrec_authority.delivery import AuthorityEvent, Delivery
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore
from fedrec_authority.folder.folder_changes import make_epoch, renew_issuer
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.members.register import find
from fedrec_authority.opening.revealer import _CatchingUp
from fedrec_client.state.client_state import ClientState


@pytest.mark.slow
def test_each_change_is_an_epoch_with_other_secrets(folder, people):
    first = folder.newest
    keep(folder, folder.membership.with_member(people[3].public, 200))
    second = rotate(folder)
    keep(folder, folder.membership.without_member(people[0].client_id, 300))
    third = rotate(folder)
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
            pinned_authority_key=folder.authority.public_key,
        )
        keys.add(secrets.group_key)
    assert len(keys) == 2
    former = [m for m in folder.membership.members if not m.is_present]
    assert [(m.client_id, m.added_at, m.removed_at) for m in former] == [
        (people[0].client_id, 100, 300)
    ]


@pytest.mark.slow
def test_nothing_here_opens_an_epoch_that_is_over(folder, people):
    first = folder.newest
    wrapped = [json.loads(first.to_json())["wrapped_keys"][p.client_id] for p in people[:3]]
    rotate(folder)
    kept = [path.read_text() for path in folder.path.rglob("*") if path.is_file()]
    assert not [one for one in wrapped for text in kept if one in text]
    rosters = sorted(path.name for path in (folder.private / "rosters").iterdir())
    assert rosters == ["00000001.json", "00000002.json"]


@pytest.mark.slow
def test_what_is_private_is_readable_by_its_owner_only(folder):
    assert stat.S_IMODE(folder.private.stat().st_mode) == 0o700
    for name in ("authority.key", "membership.json"):
        assert stat.S_IMODE((folder.private / name).stat().st_mode) == 0o600


@pytest.mark.slow
def test_an_epoch_made_before_a_crash_is_not_made_again(folder):
    before = folder.membership
    rotate(folder)
    # The process died after the epoch's file and before its own record.
    keep(folder, before)
    assert rotate(folder).roster.epoch == 3


@pytest.mark.slow
def test_numbers_only_grow(folder):
    assert rotate(folder, number=9).roster.epoch == 9
    for number in (1, 9):
        with pytest.raises(KeysError, match="already made epoch 9"):
            rotate(folder, number=number)
    with pytest.raises(KeysError, match="may be left out"):
        rotate(folder, number=2**63)
    assert rotate(folder).roster.epoch == 10


@pytest.mark.slow
def test_a_number_that_could_not_be_read_again_changes_nothing(folder, people):
    before = folder.membership
    with pytest.raises(KeysError, match="does not fit 63 bits"):
        keep(folder, before.with_member(people[3].public, NOW, users_cap=2**63))
    assert folder.membership == before


def named(*starts):
    """Return identities; who is found depends on their ids alone."""

    class Known(PublicIdentity):
        __slots__ = ()

        @property
        def client_id(self):
            return self.label.ljust(64, "0")

    keys = {"signing_key": bytes(32), "exchange_key": bytes(32), "tls_key": bytes(91)}
    return [Known(label=start, **keys) for start in starts]


@pytest.mark.slow
def test_people_are_found_by_what_was_compared():
    known = named("a" * 16 + "1", "a" * 16 + "2", "b" * 16)
    assert find("bbbb bbbb bbbb BBBB", known, "applicants") is known[2]
    assert find("a" * 16 + "1", known, "applicants") is known[0]
    with pytest.raises(KeysError, match="matches more than one of the applicants") as several:
        find("a" * 16, known, "applicants")
    assert known[0].client_id in several.value.message
    assert known[2].client_id not in several.value.message
    with pytest.raises(KeysError, match="matches none of the applicants") as unmatched:
        find("c" * 16, known, "applicants")
    assert all(each.client_id in unmatched.value.message for each in known)
    for short in ("b" * 15, "", "z" * 16, "b" * 16 + "g"):
        with pytest.raises(KeysError, match="at least 16"):
            find(short, known, "applicants")


@pytest.mark.slow
def test_a_swapped_exchange_key_is_not_added(folder, people):
    swapped = replace(people[3].public, exchange_key=people[0].public.exchange_key)
    change(folder, lambda keys: keys.keep_applicants([(swapped, b"")]))
    with pytest.raises(FedrecError) as refused:
        folder.find_joiner(people[3].client_id)
    assert refused.value.code == "bad_signature"
    keep(folder, folder.membership.with_member(people[3].public, 5))
    # As in a file of an earlier release, which names no digest.
    path = folder.private / "membership.json"
    kept = json.loads(path.read_text())
    del kept["sha256"]
    good, bad = people[3].public.fields()["exchange_key"], swapped.fields()["exchange_key"]
    path.write_text(json.dumps(kept).replace(str(good), str(bad)))
    with pytest.raises(FedrecError) as refused:
        rotate(folder)
    assert refused.value.code == "bad_signature"


@pytest.mark.slow
def test_an_authority_that_opens_sums_keeps_what_members_do_not_get(tmp_path, people):
    protection = {"name": "bfv", "key_holder": "authority"}
    plan = PLAN.model_copy(update={"protection": PLAN.protection.model_validate(protection)})
    folder = AuthorityFolder(tmp_path / "alone")
    assert not AuthorityFolder(tmp_path / "alone").epoch_path.exists()
    keep(folder, folder.begin(plan, 12).of_exactly([p.public for p in people[:3]], 100))
    first = rotate(folder)
    second = rotate(folder)
    assert folder.reveals
    assert first.roster.revealer == second.roster.revealer == folder.revealer.load().public
    assert folder.revealer.epochs == (1, 2)
    assert folder.revealer.secret_of(1) != folder.revealer.secret_of(2)
    # Another machine makes an epoch of its own: what opens sums is in no backup.
    back_up(folder, tmp_path / "a.backup", PASSPHRASE)
    other = AuthorityFolder(tmp_path / "other")
    assert restore(tmp_path / "a.backup", other, PASSPHRASE) == 2
    assert not other.revealer.folder.exists()
    third = rotate(other)
    assert third.roster.epoch == 3 and third.roster.revealer != second.roster.revealer
    assert other.revealer.epochs == (3,)


@pytest.mark.slow
def test_an_epoch_for_the_other_key_holder_is_not_made(tmp_path, people):
    members = [person.public for person in people[:3]]
    keys = RevealerKeyChanges(tmp_path / "revealer")
    with pytest.raises(KeysError, match="takes no revealer, but one was given"):
        make_epoch(Authority.create(), PLAN, 12, members, number=1, revealer=keys)
    assert keys.epochs == ()


@pytest.mark.slow
def test_another_issuer_takes_everything_back_that_the_old_one_gave(folder):
    change(folder, lambda keys: keys.serve_at(["fedrec.example", "10.0.0.7"]))
    change(folder, lambda keys: keys.make_operator())
    old = folder.authority
    used = invited(folder, Identity.create("a"), "a")
    change(folder, lambda keys: keys.invitations.take(used, NOW))
    change(folder, lambda keys: keys.invite("late", confirm=False, now=NOW))
    change(folder, lambda keys: keys.operators.make(old.issuer, "maria", folder.path / "maria.pem"))
    assert rotate(folder).roster.ca_sha256 == certificate_sha256(old.issuer.certificate)

    renewed = change(folder, renew_issuer)
    made = rotate(folder).roster
    new = folder.authority
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
        change(folder, lambda keys: keys.invitations.take(other, NOW))


@pytest.mark.slow
def test_operators_are_listed_by_name(folder):
    change(folder, lambda keys: keys.make_operator())
    issuer = folder.authority.issuer
    own = folder.operators.list.read_bytes()
    for _ in range(2):
        change(folder, lambda keys: keys.operators.make(issuer, "maria", folder.path / "maria.pem"))
    assert folder.operators.names == ("maria",)
    listed = split_certificates(folder.operators.list.read_bytes())
    assert listed == [own, Credentials.load(folder.path / "maria.pem", "it").certificate]
    for wrong in ("operator", "nobody"):
        with pytest.raises(KeysError):
            change(folder, lambda keys, wrong=wrong: keys.operators.remove(wrong))
    with pytest.raises(KeysError, match="own process"):
        change(folder, lambda keys: keys.operators.make(issuer, "operator", folder.path / "x.pem"))
    change(folder, lambda keys: keys.operators.remove("maria"))
    assert folder.operators.list.read_bytes() == own


@pytest.fixture
def sums(tmp_path):
    made = OpenedSums(tmp_path / "state", setting="--into")
    made.bind(PIN, 1)
    made.record_reveal(RoundId(1), b"\xfc" * 32, b"sum")
    made.record_reveal(RoundId(2), b"b", b"sum")
    made.settle(RoundId(2))
    assert made.record_cell(RoundId(2), 3, b"sum of a cell")
    made.record_paused(RoundId(2), (3,), b"kept", newest=1)
    return made


def test_what_was_opened_is_read_until_its_round_is_published(sums):
    sums.close()
    with OpenedSums(sums.folder) as again:
        assert again.state == sums.state and again.state.refused_sums == 1
        found = again.state.revealed_as(RoundId(1))
        assert found is not None and found.manifest_digest == b"\xfc" * 32
        assert again.state.revealed_as(RoundId(3)) is None
        again.publish(RoundId(1), b"shared", metrics=b"\xff\x00")
        assert again.state.revealed_as(RoundId(1)) is None
        found = again.state.revealed_as(RoundId(2))
        assert found is not None and (found.manifest_digest, found.kept) == (b"b", b"kept")


def test_a_new_epoch_forgives_sums_and_a_new_run_does_not(sums):
    other = PIN.model_copy(update={"run": "run-2"})
    with sums:
        sums.bind(other, 1, new_run=True)
        state = sums.state
        assert (state.refused_sums, state.revealed, state.left_runs) == (1, (), ("run-1",))
        assert [(one.cell, one.round) for one in state.paused] == [(3, 0)]
        sums.bind(other, 2)
        assert (sums.state.refused_sums, sums.state.paused) == (0, ())


def test_another_value_in_any_column_of_any_table_is_noticed(sums):
    sums.keep_own("roster", b"{}")
    check_every_cell(sums)


def test_a_folder_of_earlier_releases_is_opened(sums):
    check_earlier_releases(sums, ClientState(pin=PIN, epoch=1))


@pytest.mark.parametrize(("number", "opened"), [(1, b"\xfc" * 32), (2, b"kept"), (3, b"any")])
def test_a_round_is_believed_with_the_contributions_that_were_opened(sums, number, opened):
    context = SimpleNamespace(membership=None, link=None, model=None, store=sums, journal=None)
    catching_up: Any = _CatchingUp(cast(Any, context))
    found = SimpleNamespace(round=number)
    catching_up._check_known(found, opened)
    if number < 3:
        # Of a round without its paused cells the others alone are published.
        with pytest.raises(RefusedError, match="were opened here"):
            catching_up._check_known(found, b"b")


@pytest.mark.slow
def test_the_newest_epoch_is_delivered_once_and_after_a_loss_again(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    for _ in range(3):
        assert delivery.look()
    assert [e.name for e in events] == ["coordinator found", "epoch began"]
    rotate(folder)
    rotate(folder)
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


@pytest.mark.slow
def test_a_full_disk_is_told_as_one_and_waited_for(folder, monkeypatch):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    delivery.look()
    with monkeypatch.context() as patched:
        full = DiskFull("membership.json cannot be written: No space left on device.")
        patched.setattr(link, "failure", full)
        assert delivery.look() and delivery.look(), "the coordinator is there"
    assert [e.name for e in events[2:]] == ["disk full"]
    assert "Free disk space" in events[2].detail
    rotate(folder)
    delivery.look()
    assert [e.name for e in events[3:]] == ["epoch delivered"]


@pytest.mark.slow
def test_an_older_folder_delivers_nothing_and_says_what_to_do(folder):
    link, events = FakeCoordinator(epoch=6), list[AuthorityEvent]()
    Delivery(folder, link, events.append).look()
    assert link.installed == []
    assert [e.name for e in events] == ["coordinator found", "epoch missing"]
    assert "--epoch 7" in events[-1].detail


@pytest.mark.slow
def test_refusals_are_told_and_end_it_where_it_is_no_operator(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    rotate(folder)
    link.refusal = ProtocolError("It is not wanted.")
    delivery.look()
    delivery.look()
    assert [e.name for e in events if "epoch" in e.name] == ["epoch refused"]
    keep(folder, folder.membership.without_member(folder.membership.present[0].client_id, 9))
    delivery.look()
    assert events[-1].name == "members changed"
    link.failure = RefusedError("no")
    with pytest.raises(RefusedError):
        delivery.look()
