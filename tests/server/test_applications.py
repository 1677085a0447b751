"""Who applies: one for each invitation, whatever happens, and nothing else is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from server.support.driving import running
from server.support.federations import Bench, authority, epoch_of, identity

from fedrec.errors import BadSignature, InvitationUsed, ProtocolError, StorageError
from fedrec.identity.application import MAX_APPLICATION_BYTES, SignedApplication
from fedrec.identity.certificates import Credentials, key_of
from fedrec.identity.identity import Identity
from fedrec.protection import NoProtection
from fedrec_server.applications import Applications


def invitation() -> Credentials:
    """Return a new invitation of the tests' authority."""
    return authority().issuer.credentials("invitation", "somebody")


def application(who: Identity, by: Credentials) -> bytes:
    """Return what an applicant hands in."""
    return SignedApplication.make(who.public, by).to_json()


def test_an_invitation_is_good_for_one_identity_for_good(tmp_path: Path) -> None:
    bench, invited = Bench.of(3), invitation()
    key, joiner, thief = key_of(invited.certificate), Identity.create("d"), Identity.create("t")

    def strangers(applications: Applications) -> list[bytes]:
        return applications.waiting(bench.federation.keys.roster.contains)

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_members_wait_for_nothing(tmp_path: Path) -> None:
    bench, invited = Bench.of(3), invitation()

    async def scenario() -> None:
        async with running(bench, tmp_path) as engine:
            raw = application(identity(3), invited)
            await engine.applications.apply(raw, key_of(invited.certificate))
            roster = bench.federation.keys.roster
            assert engine.applications.waiting(roster.contains) == [raw]
            protection = bench.federation.protection
            assert isinstance(protection, NoProtection)
            later = epoch_of(protection, 4, number=2).roster
            assert engine.applications.waiting(later.contains) == []

    asyncio.run(scenario())


def test_what_is_no_application_of_its_caller_is_refused(tmp_path: Path) -> None:
    bench, invited, other = Bench.of(3), invitation(), invitation()
    key, joiner = key_of(invited.certificate), Identity.create("d")
    raw = application(joiner, invited)
    stolen = replace(joiner.public, exchange_key=identity(0).public.exchange_key)
    forged = replace(SignedApplication.from_json(raw), identity=identity(0).public)

    async def scenario() -> None:
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
            assert engine.store.applicants() == []

    asyncio.run(scenario())


def test_a_disk_that_fails_leaves_the_invitation_unused(tmp_path: Path) -> None:
    """Killed or failing between taking an invitation and keeping who took it: nobody did."""
    bench, invited = Bench.of(3), invitation()
    key, joiner = key_of(invited.certificate), Identity.create("d")

    async def scenario() -> None:
        async with running(bench, tmp_path) as engine:
            failing = patch.object(engine.store, "keep_applicant", side_effect=StorageError("full"))
            with failing, pytest.raises(StorageError):
                await engine.applications.apply(application(Identity.create("e"), invited), key)
            await engine.applications.apply(application(joiner, invited), key)
            assert [one.client_id for one in engine.store.applicants()] == [joiner.client_id]

    asyncio.run(scenario())
