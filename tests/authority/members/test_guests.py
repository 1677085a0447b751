"""Who may be missing: by its own signed word only, and never counted to those who may not."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from authority.folder.fake_coordinator import NOW, FakeCoordinator
from world.clock import FakeClock
from world.federation import change, keep, rotate
from world.invariants import smallest_isolated
from world.plans import plan_of

from fedrec.errors import BadSignature
from fedrec.identity.application import SignedApplication
from fedrec.identity.cells import (
    Partition,
    check_whole,
    consents,
    core_among,
    guest_consent,
    whole_among,
)
from fedrec.identity.certificates import Credentials, Issuer
from fedrec.identity.identity import Identity
from fedrec.identity.roster import check_cells
from fedrec.ids import ClientId
from fedrec_authority.delivery import AuthorityEvent, Delivery
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.members.cell_placement import place
from fedrec_authority.members.register import MemberRegister

pytestmark = pytest.mark.slow

PLAN = plan_of(federation={"name": "films"}, protection={"name": "masks"}, algorithm={"dim": 4})
SIZE = 3


def word(who, federation="films"):
    """Return a client's word that it may be missing."""
    return who.sign(guest_consent(federation, who.client_id))


class World:
    """An authority's folder before its first members, and what its process tells."""

    def __init__(self, path):
        self.folder = AuthorityFolder(path)
        keep(self.folder, self.folder.begin(PLAN, 12))
        rotate(self.folder)
        self.link = FakeCoordinator()
        self.events: list[AuthorityEvent] = []
        clock = FakeClock(NOW)
        self.delivery = Delivery(self.folder, self.link, self.events.append, clock=clock)

    def invitation(self, name, *, confirm=False):
        """Return a new invitation."""
        return Credentials.load(
            change(self.folder, lambda keys: keys.invite(name, confirm=confirm, now=NOW)), "it"
        )

    def hear(self, *applications):
        """Have the authority look at applications."""
        self.link.waiting = list(applications)
        self.delivery.look()

    def join(self, *people, guests=()):
        """Admit people and guests, in one epoch."""
        made = [
            SignedApplication.make(
                who.public,
                self.invitation(who.public.label),
                consent=word(who) if who in guests else b"",
            )
            for who in (*people, *guests)
        ]
        self.hear(*made)

    @property
    def partition(self):
        """Of the newest roster, which is checked against nothing before it."""
        check_cells(None, self.roster)
        return self.roster.partition

    @property
    def roster(self):
        """The newest roster."""
        found = self.folder.last_roster
        assert found is not None
        return found


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "keys")


def people(number):
    return tuple(Identity.create(f"client-{n}") for n in range(number))


def test_a_guest_is_one_by_the_word_in_its_application(world):
    *core, guest = people(4)
    world.join(*core, guests=(guest,))
    (cell,) = world.partition.cells
    assert set(cell.core) == {who.client_id for who in core}
    assert cell.guests == (guest.client_id,)
    standing = world.partition.standing(guest.client_id)
    assert standing is not None and standing.consent == word(guest)
    (admitted,) = [e for e in world.events if e.client_id == guest.client_id]
    assert "rounds may proceed without it" in admitted.detail


@pytest.mark.parametrize("kind", ["another's", "another federation's", "garbage"])
def test_a_forged_consent_is_refused(world, kind):
    victim, other = people(2)
    forged = {
        "another's": word(other),
        "another federation's": word(victim, "books"),
        "garbage": b"go on",
    }[kind]
    invitation = world.invitation("victim")
    world.hear(SignedApplication.make(victim.public, invitation, consent=forged))
    assert world.folder.membership.members == ()
    (news,) = [e for e in world.events if e.name == "applicant refused"]
    assert "its signed consent is not for" in news.detail and "federation.name" in news.detail
    # Refused before its invitation was used: with a good word it is admitted.
    world.hear(SignedApplication.make(victim.public, invitation, consent=word(victim)))
    assert [m.consent for m in world.folder.membership.members] == [word(victim)]


def test_a_relay_can_neither_add_a_word_nor_take_it_away(world):
    who = people(1)[0]
    given = SignedApplication.make(who.public, world.invitation("a"), consent=word(who))
    plain = SignedApplication.make(who.public, world.invitation("b"))
    for changed in (replace(given, consent=b""), replace(plain, consent=word(who))):
        with pytest.raises(BadSignature):
            SignedApplication.from_json(changed.to_json())
    assert SignedApplication.from_json(given.to_json()) == given
    assert consents("films", who.public.signing_key, given.consent)
    assert not consents("films", who.public.signing_key, b"")


def test_whom_people_look_at_keeps_its_word(world):
    *core, guest = people(4)
    world.join(*core)
    looked_at = world.invitation("guest", confirm=True)
    world.hear(SignedApplication.make(guest.public, looked_at, consent=word(guest)))
    found, consent = world.folder.find_joiner(guest.client_id[:16])
    assert (found, consent) == (guest.public, word(guest))
    keep(world.folder, world.folder.membership.with_member(found, NOW, consent=consent))
    rotate(world.folder)
    assert world.partition.cells[0].guests == (guest.client_id,)


def test_guests_never_count_to_a_core(world):
    """However many there are: two that wait are no cell, and with a third they are one."""
    all_members = people(9)
    world.join(*all_members[:2], guests=all_members[3:])
    news = [e.detail for e in world.events if e.name == "awaiting"]
    assert len(news) == 1 and "6 of 8 members" in news[0]
    assert "client.when_away" in news[0] and "At least 3" in news[0]
    assert world.link.installed == [] and not world.roster.members
    world.join(all_members[2])
    (cell,) = world.partition.cells
    assert set(cell.core) == {who.client_id for who in all_members[:3]}
    assert set(cell.guests) == {who.client_id for who in all_members[3:]}


def test_guests_alone_are_told_whom_they_lack(world):
    world.join(guests=people(5))
    (news,) = [e.detail for e in world.events if e.name == "awaiting"]
    assert "5 of 5 members" in news and "Invite others" in news
    assert world.link.installed == []


def test_guests_are_dealt_out_over_the_cells(world):
    all_members = people(17)
    world.join(*all_members[:10], guests=all_members[10:])
    cells = world.partition.cells
    assert sorted(len(cell.core) for cell in cells) == [3, 3, 4]
    assert sorted(len(cell.members) for cell in cells) == [5, 6, 6]
    assert sum(len(cell.guests) for cell in cells) == 7


def test_a_guest_joins_at_once_and_a_core_member_waits_for_its_cell(world):
    all_members = people(7)
    world.join(*all_members[:3])
    world.join(all_members[3], guests=(all_members[4],))
    (cell,) = world.partition.cells
    assert cell.guests == (all_members[4].client_id,)
    assert all_members[3].client_id not in world.partition.placed
    world.join(*all_members[5:])
    assert {frozenset(cell.core) for cell in world.partition.cells} == {
        frozenset(who.client_id for who in all_members[:3]),
        frozenset(all_members[at].client_id for at in (3, 5, 6)),
    }


# Who leaves.


def leave(who, consent):
    """Return what a member hands in that leaves its cell's core."""
    return SignedApplication.make(who.public, own(who), consent=consent)


def own(who):
    """Return a member's certificate; who issued it is not looked at here."""
    issuer = Issuer.create()
    certificate = issuer.issue("client", who.client_id, who.public.tls_key)
    return who.credentials(certificate, issuer.certificate)


def test_leave_leads_to_a_roster_that_passes(world):
    *stay, goes = all_members = people(5)
    world.join(*all_members)
    before = world.roster
    world.hear(leave(goes, word(goes)))
    check_cells(before, world.roster)
    (cell,) = world.partition.cells
    assert cell.state == "active" and set(cell.core) == {who.client_id for who in stay}
    assert cell.guests == (goes.client_id,)
    (news,) = [e for e in world.events if e.name == "member left"]
    assert news.client_id == goes.client_id and "no round" not in news.detail
    # The coordinator repeats itself; nothing happens twice.
    epochs = list(world.link.installed)
    world.delivery.look()
    assert world.link.installed == epochs and world.roster.epoch == before.epoch + 1


def test_leave_of_one_of_three_retires_the_cell(world):
    *stay, goes = all_members = people(3)
    world.join(*all_members)
    before = world.roster
    world.hear(leave(goes, word(goes)))
    check_cells(before, world.roster)
    assert [cell.state for cell in world.partition.cells] == ["retired"]
    (news,) = [e for e in world.events if e.name == "member left"]
    assert "no round opens before others join" in news.detail
    assert world.folder.membership.too_few(), "guests do not count"
    assert not world.partition.placed and len(world.roster.members) == 3
    # Three others that wait make a cell with the two that stayed; the third never waits again.
    world.join(*(Identity.create(f"late-{n}") for n in range(3)))
    (cell,) = world.partition.in_use
    assert {who.client_id for who in stay} < set(cell.core) and len(cell.core) == 5
    assert goes.client_id not in cell.core


@pytest.mark.parametrize(
    "kind", ["no word", "another's word", "another federation's", "other keys"]
)
def test_a_forged_leave_is_refused(world, kind):
    """The coordinator can put no client out of a core, nor can another member."""
    *_, victim = all_members = people(4)
    world.join(*all_members)
    thief, before = Identity.create("thief"), world.roster
    forged = {
        "no word": leave(victim, b""),
        "another's word": leave(victim, word(all_members[0])),
        "another federation's": leave(victim, word(victim, "books")),
        # Its identity under the keys of another certificate.
        "other keys": SignedApplication.make(victim.public, own(thief), consent=word(victim)),
    }[kind]
    world.hear(forged)
    assert world.roster == before and not world.folder.membership.is_changed
    refused = [e for e in world.events if e.name == "applicant refused"]
    assert len(refused) == (kind != "other keys")


def test_who_was_removed_does_not_come_back_by_leaving(world):
    *_, gone = all_members = people(5)
    world.join(*all_members)
    keep(world.folder, world.folder.membership.without_member(gone.client_id, NOW))
    before = rotate(world.folder).roster
    world.hear(leave(gone, word(gone)))
    assert world.roster == before


# Histories as an authority makes them, whose sums are those that R3 allows.

CAST = people(11)
WORDS = {who.client_id: word(who) for who in CAST}


def opened(rng, partition):
    """Return whose updates a round over some of the members adds up, or no client's."""
    cells = rng.sample(partition.in_use, rng.randrange(1, len(partition.in_use) + 1))
    here = {one for cell in cells for one in cell.core if rng.random() < 0.97}
    here |= {one for cell in cells for one in cell.guests if rng.random() < 0.5}
    found = set(whole_among(partition, here))
    if len(core_among(partition, found)) < SIZE:
        return set()
    check_whole(partition, found, least=SIZE, what="A sum")
    return found


def history(rng):
    """Play joins of both kinds and leaves; return the fewest of a core that sums isolate."""
    membership = MemberRegister(plan_json=b"", n_items=1, cell_size=SIZE)
    now, away = Partition(cell_size=SIZE), list(CAST)
    sums: list[set[ClientId]] = []
    seen: Counter[str] = Counter()
    exposed: set[ClientId] = set()
    for epoch in range(1, 8):
        for _ in range(rng.randrange(1, 5)):
            present = [m for m in membership.members if m.is_present]
            waits = [m for m in present if not m.consent]
            if away and rng.random() < 0.7:
                who = away.pop()
                consent = WORDS[who.client_id] if rng.random() < 0.3 else b""
                membership = membership.with_member(who.public, epoch, consent=consent)
                seen["guest" if consent else "core"] += 1
            elif waits and rng.random() < 0.6:
                chosen = rng.choice(waits).client_id
                membership = membership.with_guest(chosen, WORDS[chosen])
                seen["left"] += 1
            elif len(present) > 1:
                membership = membership.without_member(rng.choice(present).client_id, epoch)
                seen["removed"] += 1
        now = place(now, membership.standings, epoch)
        for cell in now.in_use:
            fresh = [one for one in cell.core if now.since(one) == cell.since]
            assert len(fresh) >= SIZE and not any(
                m.consent for m in membership.members if m.client_id in cell.core
            )
        exposed |= {one for cell in now.cells for one in (*cell.guests, *cell.left)}
        for _ in range(4 if now.in_use else 0):
            found = opened(rng, now)
            sums += [found] if found else []
    seen["sums"] += len(sums)
    honest = [at for at, who in enumerate(CAST) if who.client_id not in exposed]
    rows = [{at for at in honest if CAST[at].client_id in total} for total in sums]
    rows = [row for row in rows if row]
    return smallest_isolated(rows, honest) if rows else SIZE, seen


def test_no_history_with_guests_isolates_fewer_than_a_core():
    rng = random.Random(14)
    seen: Counter[str] = Counter()
    for _ in range(60):
        smallest, happened = history(rng)
        assert smallest >= SIZE
        seen += happened
    assert min(seen[kind] for kind in ("guest", "core", "left", "removed")) > 30
    assert seen["sums"] > 300
