"""Clients that apply and clients that are missing."""

from contextlib import closing
from dataclasses import replace
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs
from world.cells import partition_of
from world.clock import FakeClock
from world.engine import (
    Bench,
    authority,
    credentials,
    epoch_of,
    gather,
    identity,
    operator,
    poll,
    running,
)
from world.serving import serving

from fedrec.errors import (
    BadSignature,
    InvitationUsed,
    ProtocolError,
    RefusedError,
    StorageError,
)
from fedrec.identity.application import MAX_APPLICATION_BYTES, SignedApplication
from fedrec.identity.cells import guest_consent
from fedrec.identity.certificates import key_of
from fedrec.identity.identity import Identity
from fedrec.protection import NoProtection
from fedrec.wire.admin_link import AdminLink
from fedrec_server.peers.member_states import unplaced, waits_for


def words(engine):
    return waits_for(engine.run.state, engine.run.federation.keys.roster, engine.run.presence)


@pytest.mark.parametrize(
    ("seconds", "news"),
    [(10, "here"), (59, "59 s"), (300, "5 min"), (3 * 3600, "3 h"), (2 * 86_400, "2 d")],
)
async def test_one_of_three_is_away(tmp_path, seconds, news):
    bench, clock = Bench.of(3, reveals=True), FakeClock()
    label = identity(2).public.label

    async with running(bench, tmp_path, clock=clock) as engine:
        engine.run.presence.heard(identity(2).client_id)
        clock.advance(max(seconds, 31.0))
        for number in range(2):
            engine.run.presence.heard(identity(number).client_id)
        if seconds < 31.0:
            engine.run.presence.heard(identity(2).client_id)
        found = words(engine)
    if seconds < 31.0:
        assert found == "", "all are here"
        return
    assert found == f"{label}, last heard {news} ago. The run continues by itself when it is back"


async def test_no_client_came_yet(tmp_path):
    bench = Bench.of(5, reveals=True)

    async with running(bench, tmp_path) as engine:
        engine.run.presence.heard(identity(0).client_id)
        found = words(engine)
    first, second, third = (identity(number).public.label for number in (1, 2, 3))
    together = f"{first}, {second}, and {third}, not heard from since the coordinator started"
    assert found.startswith(together), "those of whom the same is told stand together"
    assert found.count("not heard from since the coordinator started") == 1
    assert found.endswith("; 1 more. The run continues by itself when they are back")


async def test_a_federation_that_forms_is_not_told_to_invite_others(tmp_path):
    bench = Bench.of(3, reveals=True)

    async with running(bench, tmp_path) as engine:
        run = engine.run
        empty = replace(run.state, roster=frozenset())
        found = waits_for(empty, run.federation.keys.roster, run.presence)
    assert found.startswith("the first clients: ") and "Start the others" in found
    assert "have applied. So far, none has. Start" in found
    assert "provision" not in found


async def test_a_federation_that_forms_names_who_applied(tmp_path):
    bench = Bench.of(3)

    news = []
    async with running(bench, tmp_path) as engine:
        run, applications = engine.run, engine.applications
        empty = replace(run.state, roster=frozenset())
        for label in ("south", "north", "", "west"):
            invited = authority().issuer.credentials("invitation", label)
            who = Identity.create(label)
            signed = SignedApplication.make(who.public, invited).to_json()
            await applications.apply(signed, key_of(invited.certificate))
            roster = run.federation.keys.roster
            news.append(waits_for(empty, roster, run.presence, applications.labels))
    one, two, unnamed, many = news
    assert "have applied. So far, south applied. Start the others" in one
    assert ". So far, north and south applied. " in two
    assert len(unnamed) > len(two)
    assert ", and 1 more applied. " in many


async def test_who_joined_and_asks_for_nothing_is_not_called_away(tmp_path):
    """A first start compiles for long; a client that ended with an error looks the same."""
    bench, clock = Bench.of(3, reveals=True), FakeClock()
    first, second, third = (identity(number) for number in range(3))

    compiles = "A first start compiles for a while. Look at its terminal if that takes long"
    a, b, c = (who.public.label for who in (first, second, third))
    async with running(bench, tmp_path, clock=clock) as engine:
        presence, news = engine.run.presence, []
        for who in (first, second, third):
            presence.joined(who.client_id)
        assert not presence.live(), "no round counts on a client that is not ready"
        news.append(words(engine))
        clock.advance(120.0)
        news.append(words(engine))
        presence.heard(first.client_id)
        clock.advance(60.0)
        presence.joined(first.client_id)
        clock.advance(60.0)
        presence.heard(second.client_id)
        clock.advance(60.0)
        news.append(words(engine))
        assert presence.seen == {who.client_id for who in (first, second, third)}
    at_once, later, mixed = news
    assert (
        at_once == f"{a}, {b}, and {c}, joined just now, has not asked for a round yet. {compiles}"
    )
    assert (
        later == f"{a}, {b}, and {c}, joined 2 min ago, has not asked for a round yet. {compiles}"
    )
    assert mixed == (
        f"{c}, joined 5 min ago, has not asked for a round yet; {a}, joined 2 min ago, has not "
        f"asked for a round yet; {b}, last heard 1 min ago. The run continues by itself when "
        f"they are back. {compiles}"
    )


def test_describing_the_federation_counts_as_heard(tmp_path):
    with serving(Bench.of(3), tmp_path) as server:
        with server.link(1) as link:
            link.federation(identity(1).client_id)
        with closing(AdminLink(server.address, operator())) as admin:
            found = admin.status()
    assert (found.clients_seen, found.clients_in_roster) == (1, 3)
    label = identity(1).public.label
    assert f"{label}, joined " in found.waits_for
    assert "has not asked for a round" in found.waits_for


async def test_no_client_is_away_and_they_are_too_few(tmp_path):
    """One of five left for good, and the plan wants five: who joins is all that helps."""
    bench = Bench.of(4, reveals=True, minimum_clients=5)

    async with running(bench, tmp_path) as engine:
        for number in range(4):
            engine.run.presence.heard(identity(number).client_id)
        found = words(engine)
    assert found.startswith("more clients: 4 are left for sums, 5 are needed")
    assert "rounds.minimum_clients" in found and "`fedrec provision --add`" in found


async def test_the_log_tells_once_of_a_wait_that_lasts(tmp_path):
    bench, clock = Bench.of(3, reveals=True), FakeClock()

    with capture_logs() as logs:
        async with running(bench, tmp_path, clock=clock) as engine:
            for _ in range(8):
                for number in range(2):
                    engine.run.presence.heard(identity(number).client_id)
                await engine.tick()
                clock.advance(20.0)
    (news,) = [line["waits_for"] for line in logs if line["event"] == "round waits"]
    assert news.startswith(identity(2).public.label)
    assert "continues by itself when it is back" in news


async def test_the_papers_protocol_waits_for_any_client(tmp_path):
    bench = Bench.of(4, veiled=True, minimum_clients=3)

    async with running(bench, tmp_path) as engine:
        for number in range(2):
            engine.run.presence.heard(identity(number).client_id)
        before = words(engine)
        engine.run.presence.heard(identity(2).client_id)
        before, after = before, words(engine)
    assert "not heard from since the coordinator started" in before
    assert after == ""


async def test_a_folder_that_is_older_than_a_members_model_is_told_at_once(tmp_path):
    """Whatever else is waited for: also while a round collects without that member."""
    bench = Bench.of(4, minimum_clients=3)

    async with running(bench, tmp_path) as engine:
        with capture_logs() as logs:
            for _ in range(2):
                await poll(engine, 3, version=7)
            alone = words(engine)
        await gather(engine, range(3))
        assert engine.run.state.current is not None
        alone, within, logged = alone, words(engine), [line["event"] for line in logs]
    name = identity(3).public.label
    assert alone == within
    assert alone.startswith(
        f"its newest folder: {name} reports round 7, but this folder ends with round 0. Stop"
    )
    assert logged == ["folder is older than the run"], "once"


def test_newcomers_that_wait_for_others_are_in_the_status():
    roster = Bench.of(4, reveals=True).federation.keys.roster
    assert unplaced(roster) == ""
    first = partition_of(identity(number).client_id for number in range(3))
    news = unplaced(replace(roster, partition=first))
    assert news.startswith(f"{identity(3).public.label}: newcomers are summed with at least 2 ")
    assert "2 more have to join. " in news


def invitation():
    """Return a new invitation of the tests' authority."""
    return authority().issuer.credentials("invitation", "somebody")


def application(who, by):
    """Return what an applicant hands in."""
    return SignedApplication.make(who.public, by).to_json()


async def test_an_invitation_is_good_for_one_identity_for_good(tmp_path):
    bench, invited = Bench.of(3), invitation()
    key, joiner, thief = key_of(invited.certificate), Identity.create("d"), Identity.create("t")

    def strangers(applications):
        return applications.waiting(bench.federation.keys.roster)

    async with running(bench, tmp_path) as engine:
        apply = engine.applications.apply
        raw = application(joiner, invited)
        for _ in range(3):
            assert await apply(raw, key) == joiner.client_id
            assert await apply(application(joiner, invited), key) == joiner.client_id
        assert strangers(engine.applications) == [raw]
        with pytest.raises(InvitationUsed):
            await apply(application(thief, invited), key)
        # The same client with another exchange key is not the one that was invited either.
        other = replace(joiner.public, exchange_key=thief.public.exchange_key, proof=b"")
        changed = replace(other, proof=joiner.sign(other.statement()))
        with pytest.raises(InvitationUsed):
            await apply(SignedApplication.make(changed, invited).to_json(), key)
    async with running(bench, tmp_path) as engine:
        with pytest.raises(InvitationUsed):
            await engine.applications.apply(application(thief, invited), key)
        assert strangers(engine.applications) == [raw]


async def test_members_wait_for_nothing(tmp_path):
    bench, invited = Bench.of(3), invitation()

    async with running(bench, tmp_path) as engine:
        raw = application(identity(3), invited)
        await engine.applications.apply(raw, key_of(invited.certificate))
        roster = bench.federation.keys.roster
        assert engine.applications.waiting(roster) == [raw]
        protection = bench.federation.protection
        assert isinstance(protection, NoProtection)
        later = epoch_of(protection, 4, number=2).roster
        assert engine.applications.waiting(later) == []


async def test_what_is_no_application_of_its_caller_is_refused(tmp_path):
    bench, invited, other = Bench.of(3), invitation(), invitation()
    key, joiner = key_of(invited.certificate), Identity.create("d")
    raw = application(joiner, invited)
    stolen = replace(joiner.public, exchange_key=identity(0).public.exchange_key)
    forged = replace(SignedApplication.from_json(raw), identity=identity(0).public)

    async with running(bench, tmp_path) as engine:
        for wrong, kind in (
            (b"x", ProtocolError),
            (raw + b" ", ProtocolError),
            (b"{" + b" " * MAX_APPLICATION_BYTES, ProtocolError),
            (application(joiner, other), BadSignature),
            (forged.to_json(), BadSignature),
            (SignedApplication.make(stolen, invited).to_json(), BadSignature),
        ):
            with pytest.raises(kind):
                await engine.applications.apply(wrong, key)
        assert engine.run.store.applicants() == []


async def test_a_disk_that_fails_leaves_the_invitation_unused(tmp_path):
    """Killed or failing between taking an invitation and keeping who took it: it is not taken."""
    bench, invited = Bench.of(3), invitation()
    key, joiner = key_of(invited.certificate), Identity.create("d")

    async with running(bench, tmp_path) as engine:
        failing = patch.object(engine.run.store, "keep_applicant", side_effect=StorageError("full"))
        with failing, pytest.raises(StorageError):
            await engine.applications.apply(application(Identity.create("e"), invited), key)
        await engine.applications.apply(application(joiner, invited), key)
        assert [one.client_id for one in engine.run.store.applicants()] == [joiner.client_id]


def leaving(number):
    """Return what a member hands in that leaves its cell's core."""
    who, own = identity(number), credentials(number)
    consent = who.sign(guest_consent("movies", who.client_id))
    return SignedApplication.make(who.public, own, consent=consent)


async def test_a_member_that_leaves_is_listed_until_a_roster_has_it_as_a_guest(tmp_path):
    bench, asked = Bench.of(4, reveals=True), leaving(3)
    roster = bench.federation.keys.roster
    cell, before = roster.partition.cells[0], roster.partition
    moved = replace(cell, core=cell.core[:3], guests=(identity(3).client_id,))
    standings = tuple(
        replace(one, consent=asked.consent) if one.client_id == identity(3).client_id else one
        for one in before.standings
    )
    later = replace(roster, partition=replace(before, cells=(moved,), standings=standings))
    key = key_of(credentials(3).certificate)

    async with running(bench, tmp_path) as engine:
        for _ in range(2):
            await engine.applications.apply(asked.to_json(), key, invited=False)
        assert engine.applications.waiting(roster) == [asked.to_json()]
    async with running(bench, tmp_path) as engine:
        assert engine.applications.waiting(roster) == [asked.to_json()]
        assert engine.applications.waiting(later) == []


async def test_a_member_applies_for_itself_alone_and_to_be_a_guest(tmp_path):
    bench, own = Bench.of(4, reveals=True), credentials(3)
    key, other = key_of(own.certificate), Identity.create("another")
    word = other.sign(guest_consent("movies", other.client_id))

    async with running(bench, tmp_path) as engine:
        for refused in (
            SignedApplication.make(other.public, own, consent=word),
            SignedApplication.make(identity(3).public, own),
        ):
            with pytest.raises(RefusedError):
                await engine.applications.apply(refused.to_json(), key, invited=False)
        with pytest.raises(BadSignature):
            await engine.applications.apply(leaving(2).to_json(), key, invited=False)
        assert engine.run.store.applicants() == []


async def test_an_applicant_that_changes_its_word_is_heard(tmp_path):
    bench, invited, joiner = Bench.of(3), invitation(), Identity.create("d")
    key, consent = key_of(invited.certificate), joiner.sign(b"a word, of whatever kind")
    first = SignedApplication.make(joiner.public, invited).to_json()
    second = SignedApplication.make(joiner.public, invited, consent=consent).to_json()

    async with running(bench, tmp_path) as engine:
        roster = bench.federation.keys.roster
        await engine.applications.apply(first, key)
        failing = patch.object(engine.run.store, "keep_applicant", side_effect=StorageError("full"))
        with failing, pytest.raises(StorageError):
            await engine.applications.apply(second, key)
        assert engine.applications.waiting(roster) == [first]
        await engine.applications.apply(second, key)
        assert engine.applications.waiting(roster) == [second]
    async with running(bench, tmp_path) as engine:
        assert engine.applications.waiting(roster) == [second]


def test_a_leave_goes_the_way_of_applications(tmp_path):
    """Handed in over a member's connection, fetched over the key authority's."""
    with serving(Bench.of(4, reveals=True), tmp_path) as found:
        with found.link(3) as link:
            answer = link.apply(leaving(3).to_json())
        assert answer.listed and key_of(answer.certificate) == identity(3).public.tls_key
        admin = AdminLink(found.address, operator())
        try:
            (relayed,) = admin.applicants()
        finally:
            admin.close()
        assert relayed.is_leave and relayed.identity == identity(3).public
