"""Guests, and the chain of rosters that a client follows."""

import json
from dataclasses import replace

import pytest
from world.cells import guest, partition_of
from world.fake_authority import AuthorityWorld
from world.fake_federation import World

from fedrec.clock import SystemClock
from fedrec.errors import RosterBreaksCells, SettingsError
from fedrec.follower.events import ClientEvent
from fedrec.follower.patient_link import Stopped
from fedrec.follower.round_journal import AUDIT_FILE, AuditLog
from fedrec.identity.application import SignedApplication
from fedrec.identity.cells import Cell, Partition, Standing, consents
from fedrec.identity.certificates import CERTIFICATE_FILE
from fedrec.identity.document import write_public, write_secret
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.settings.schema import Settings
from fedrec_client.app import ClientApp
from fedrec_client.joining import Leave, RosterChain, kept_roster, leave
from fedrec_client.state.private_store import PrivateStore


def settings_of(world, **client):
    """Return a client's settings in a world's folder."""
    given = {"state": "new", "authority_key": "authority.pub.json", **client}
    paths = {name: str(world.folder / given[name]) for name in ("state", "authority_key")}
    return Settings.model_validate(
        {
            **world.plan.model_dump(),
            "data": {"path": str(world.folder / "data.csv")},
            "client": {**given, **paths, "device": "cpu"},
        }
    )


@pytest.mark.parametrize(("text", "is_guest"), [(None, False), ("wait", False), ("go_on", True)])
def test_the_word_of_the_settings_is_signed_in_the_application(tmp_path, text, is_guest):
    world, path = World(tmp_path), tmp_path / "a.pem"
    write_secret(path, world.authority.issuer.credentials("invitation", "a").to_pem())

    def stop(called):
        raise Stopped

    world.link.before = stop
    settings = settings_of(
        world, invitation=str(path), **({} if text is None else {"when_away": text})
    )
    with pytest.raises(Stopped):
        ClientApp(settings, link=world.link).run()
    assert world.link.calls[0] == "apply"
    found = SignedApplication.from_json(world.link.sent[0])
    assert consents("films", found.identity.signing_key, found.consent) is is_guest
    assert bool(found.consent) is is_guest


def keep_roster(folder, roster):
    """Leave a roster as a client does that believed it."""
    with PrivateStore(folder) as store:
        store.keep_own("roster", roster.to_json())


def member(world, others, *, is_guest=False):
    """Return the settings of a client that was in rounds with others."""
    identity, folder = world.identity, world.folder / "state"
    people = [puppet.public for puppet in world.puppets[:others]]
    cores = [one.client_id for one in people] + ([] if is_guest else [identity.client_id])
    guests = [guest(identity, "films")] if is_guest else []
    epoch = world.make_epoch(
        members=[*people, identity.public], partition=partition_of(cores, guests=guests)
    )
    keep_roster(folder, epoch.roster)
    issuer = world.authority.issuer
    certificate = issuer.issue("client", identity.client_id, identity.public.tls_key)
    write_public(folder / CERTIFICATE_FILE, certificate)
    return settings_of(world, state="state")


@pytest.mark.parametrize("others", [2, 3])
def test_who_leaves_signs_it_and_hears_what_becomes_of_the_others(tmp_path, others):
    world = World(tmp_path)
    settings = member(world, others)
    before = sorted(path.name for path in (world.folder / "state").iterdir())
    assert leave(settings, link=world.link) == Leave(
        client_id=world.identity.client_id, others=others, needed=3, others_go_on=others == 3
    )
    assert world.link.calls == ["apply", "close"]
    found = SignedApplication.from_json(world.link.sent[0])
    assert found.is_leave and found.identity == world.identity.public
    assert consents("films", found.identity.signing_key, found.consent)
    assert before == sorted(path.name for path in (world.folder / "state").iterdir())


def test_only_who_is_waited_for_leaves(tmp_path):
    world = World(tmp_path)
    with pytest.raises(SettingsError, match="in no sum yet"):
        leave(settings_of(world, state="state"), link=world.link)
    with pytest.raises(SettingsError, match="a guest already"):
        leave(member(world, 3, is_guest=True), link=world.link)
    none = world.make_epoch(partition=Partition())
    keep_roster(world.folder / "state", none.roster)
    with pytest.raises(SettingsError, match="name no client for which rounds must wait"):
        leave(settings_of(world, state="state"), link=world.link)
    assert world.link.calls == []


@pytest.mark.parametrize("is_guest", [True, False])
def test_an_unsigned_word_is_reported(tmp_path, is_guest):
    """Changed in the settings after the client had applied, it changes nothing by itself."""
    world, events = AuthorityWorld(tmp_path), list[ClientEvent]()
    cores = [one.client_id for one in world.puppets]
    guests = [guest(world.identity, "films")] if is_guest else []
    cores += [] if is_guest else [world.identity.client_id]
    world.epoch = world.make_epoch(partition=partition_of(cores, guests=guests))

    def stop(called):
        if called == "next_task":
            raise Stopped

    world.link.before = stop
    settings = settings_of(world, state="state", when_away="go_on")
    with pytest.raises(Stopped):
        ClientApp(settings, link=world.link, on_event=events.append).run()
    seen = [event.detail for event in events if event.name == "waited_for"]
    assert len(seen) == (0 if is_guest else 1)
    assert all("client leave" in detail for detail in seen)


PEOPLE = [Identity.create() for _ in range(4)]
IDS = tuple(person.client_id for person in PEOPLE)
FIRST = Roster(
    federation="test",
    epoch=1,
    members=tuple(person.public for person in PEOPLE),
    minimum_summands=3,
    protection="masks",
    protection_fingerprint="00" * 32,
    context_sha256=bytes(32),
    secrets_sha256=bytes(32),
    authority_key=bytes(32),
    ca_sha256=bytes(32),
    partition=Partition(
        cell_size=3,
        cells=(Cell(id=1, since=1, core=IDS[:3]),),
        standings=tuple(Standing(client_id=one, since=1) for one in IDS[:3]),
    ),
)
REFILLED = replace(
    FIRST,
    epoch=2,
    previous=FIRST.digest(),
    partition=Partition(
        cell_size=3,
        cells=(Cell(id=1, since=1, core=IDS[1:], left=IDS[:1]),),
        standings=(
            *FIRST.partition.standings,
            Standing(client_id=IDS[3], since=1),
        ),
    ),
)


def chain_in(store):
    return RosterChain(store, AuditLog(store.folder, SystemClock()))


@pytest.fixture
def store(tmp_path):
    with PrivateStore(tmp_path) as made:
        yield made


def test_a_client_stays_with_the_roster_before_and_audits_the_one_that_breaks_cells(store):
    chain = chain_in(store)
    chain.admit(FIRST, "run")
    for _ in range(2):
        with pytest.raises(RosterBreaksCells, match="core of cell 1"):
            chain.admit(REFILLED, "run")
    # Started again it knows as much.
    with pytest.raises(RosterBreaksCells):
        chain_in(store).admit(REFILLED, "run")
    assert kept_roster(PrivateStore(store.folder, read_only=True)) == FIRST
    lines = [json.loads(line) for line in (store.folder / AUDIT_FILE).read_text().splitlines()]
    assert [line["code"] for line in lines] == ["roster_breaks_cells"] * 2
    following = replace(FIRST, epoch=2, previous=FIRST.digest())
    chain.admit(following, "run")
    assert kept_roster(PrivateStore(store.folder, read_only=True)) == following


def test_another_federation_has_a_chain_of_its_own(store):
    chain = chain_in(store)
    chain.admit(FIRST, "run")
    chain.admit(replace(FIRST, federation="other", partition=Partition()), "run")
