"""Who applies: one for each invitation, whatever happens, and nothing else is kept."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from server.support.driving import running
from server.support.federations import (
    Bench,
    authority,
    credentials,
    epoch_of,
    identity,
    operator,
)
from server.support.serving import serving

from fedrec.errors import (
    BadSignature,
    InvitationUsed,
    ProtocolError,
    RefusedError,
    StorageError,
)
from fedrec.identity.application import MAX_APPLICATION_BYTES, SignedApplication
from fedrec.identity.cells import guest_consent
from fedrec.identity.certificates import Credentials, key_of
from fedrec.identity.identity import Identity
from fedrec.protection import NoProtection
from fedrec.wire.admin_link import AdminLink
from fedrec_server.peers.admission import Applications


def invitation() -> Credentials:
    """Return a new invitation of the tests' authority."""
    return authority().issuer.credentials("invitation", "somebody")


def application(who: Identity, by: Credentials) -> bytes:
    """Return what an applicant hands in."""
    return SignedApplication.make(who.public, by).to_json()


async def test_an_invitation_is_good_for_one_identity_for_good(tmp_path):
    bench, invited = Bench.of(3), invitation()
    key, joiner, thief = key_of(invited.certificate), Identity.create("d"), Identity.create("t")

    def strangers(applications: Applications) -> list[bytes]:
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
    """Killed or failing between taking an invitation and keeping who took it: nobody did."""
    bench, invited = Bench.of(3), invitation()
    key, joiner = key_of(invited.certificate), Identity.create("d")

    async with running(bench, tmp_path) as engine:
        failing = patch.object(engine.run.store, "keep_applicant", side_effect=StorageError("full"))
        with failing, pytest.raises(StorageError):
            await engine.applications.apply(application(Identity.create("e"), invited), key)
        await engine.applications.apply(application(joiner, invited), key)
        assert [one.client_id for one in engine.run.store.applicants()] == [joiner.client_id]


def leaving(number: int) -> SignedApplication:
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
