"""Who is invited is admitted, once, with what the invitation is for."""

from __future__ import annotations

import pytest
from authority.folder.fake_coordinator import NOW, FakeCoordinator, invited
from authority.members.test_guests import World, people
from world.clock import FakeClock
from world.federation import change, keep, rotate

from fedrec.errors import KeysError
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials, Issuer
from fedrec.identity.identity import Identity
from fedrec.ids import ClientId
from fedrec_authority.delivery import AuthorityEvent, Delivery

pytestmark = pytest.mark.slow


def test_who_is_invited_is_admitted_in_one_epoch(folder):
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


def test_an_admitted_newcomer_that_waits_for_others_is_told_of(tmp_path):
    world = World(tmp_path / "keys")
    world.join(*people(3))
    folder = world.folder
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    link.waiting = [invited(folder, Identity.create("late"), "late")]
    delivery.look()
    (told,) = [event for event in events if event.name == "awaiting"]
    assert told.label == "late" and told.detail.startswith("in no sum yet: newcomers are summed")
    assert told.detail.endswith("2 more have to join")


def test_an_invitation_admits_one(folder):
    """The coordinator relays what it likes: the authority remembers who used which invitation."""
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    path = change(folder, lambda keys: keys.invite("hospital-d", confirm=False, now=NOW))
    invitation = Credentials.load(path, "client.invitation")
    thieves = [Identity.create(f"thief {number}") for number in range(100)]
    link.waiting = [SignedApplication.make(who.public, invitation) for who in thieves]
    delivery.look()
    (admitted,) = [e for e in events if e.name == "member admitted"]
    refused = [e for e in events if e.name == "applicant refused"]
    assert len(refused) == 99 and all("already used" in e.detail for e in refused)
    assert all(admitted.client_id in e.detail for e in refused), "its owner is told by whom"
    assert len(folder.membership.present) == 4
    # Removed, it does not come back by what it was invited with.
    keep(folder, folder.membership.without_member(ClientId(admitted.client_id), NOW))
    rotate(folder)
    delivery.look()
    assert len(folder.membership.present) == 3
    assert folder.find_joiner(admitted.client_id)[0].client_id == admitted.client_id


def test_invitations_run_out_and_are_the_authoritys_own(folder):
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
    assert "This machine's clock reads" in told["late"] and "no such invitation" in told["foreign"]
    assert len(folder.membership.present) == 3 and link.installed == []
    for name in ("../up", "", "a b"):
        with pytest.raises(KeysError):
            change(folder, lambda keys, name=name: keys.invite(name, confirm=False, now=NOW))


def test_another_invitation_of_a_name_takes_the_place_of_one_that_nobody_used(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    first = Credentials.load(
        change(folder, lambda keys: keys.invite("d", confirm=False, now=NOW)), "it"
    )
    second = Credentials.load(
        change(folder, lambda keys: keys.invite("d", confirm=False, now=NOW)), "it"
    )
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
        change(folder, lambda keys: keys.invite("d", confirm=False, now=NOW))


def test_applicants_are_told_once_and_wait_for_people_where_that_was_asked_for(folder):
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
