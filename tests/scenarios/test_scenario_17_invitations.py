"""Scenario 17: an invitation makes one member, for whoever has it, once, for fourteen days.

What the scenario says of tokens holds of invitations. None can be guessed: without a certificate of
the authority no handshake succeeds.
"""

import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from world.engine import Bench, authority, credentials, identity
from world.keys import credentials as strangers
from world.serving import serving

from fedrec.errors import (
    BadSignature,
    CertificateExpired,
    FedrecError,
    InvitationUsed,
    NotInRoster,
    RefusedError,
    Unreachable,
)
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials
from fedrec.identity.document import write_secret
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec_server.service.callers import certificate_of
from fedrec_server.store.tables import DATABASE


def invitation(*, made_days_ago=0):
    """Return a new invitation of the key authority."""
    now = datetime.now(UTC) - timedelta(days=made_days_ago)
    return authority().issuer.credentials("invitation", "somebody", now=now)


def apply(found, who, by):
    """Apply over a connection of one's own."""
    with found.link(by) as link:
        return link.apply(SignedApplication.make(who.public, by).to_json())


def test_scenario_17_invitation_twice(tmp_path):
    """A hundred at once: one is kept, the others are told so, and it stays so after a restart."""
    bench, invited = Bench.of(3), invitation()
    crowd = [Identity.create(f"applicant {number}") for number in range(100)]

    def answer(who, attempts=5):
        try:
            return "" if apply(found, who, invited).listed else "kept"
        except Unreachable:
            # A hundred handshakes at once may take a small machine too long: clients try again.
            if not attempts:
                raise
            return answer(who, attempts - 1)
        except FedrecError as error:
            return error.code

    with serving(bench, tmp_path) as found:
        with ThreadPoolExecutor(100) as threads:
            seen = list(threads.map(answer, crowd))
        assert Counter(seen) == {"kept": 1, "invitation_used": 99}
        winner = crowd[seen.index("kept")]
        (kept,) = found.coordinator.engine.run.store.applicants()
        assert kept.client_id == winner.client_id
    with serving(bench, tmp_path) as found:
        assert apply(found, winner, invited).listed is False, "it may ask what became of it"
        with pytest.raises(InvitationUsed):
            apply(found, Identity.create("late"), invited)


def test_scenario_17_applicant_calls_next_task(tmp_path):
    """An invitation opens nothing but the application, in no client's name."""
    with serving(Bench.of(3), tmp_path) as found, found.link(invitation()) as link:
        me, run = identity(0).client_id, found.run
        for call in (
            lambda: link.next_task(me, run, RoundId(0), wait_seconds=0.0),
            lambda: link.federation(me),
            lambda: link.catalogue(me),
            lambda: link.published(me, run, RoundId(0)),
            lambda: link.snapshot(me, run, RoundId(0)),
            lambda: link.contribution(me, run, RoundId(1), identity(1).client_id),
        ):
            with pytest.raises(NotInRoster) as seen:
                call()
            assert seen.value.code == "not_a_member"
    other, own = Identity.create("another"), credentials(0)
    with (
        serving(Bench.of(3), tmp_path) as found,
        found.link(0) as link,
        pytest.raises(RefusedError),
    ):
        # A member can't invite clients. It can only ask to become a guest.
        link.apply(SignedApplication.make(other.public, own).to_json())


def test_scenario_17_expired(tmp_path, monkeypatch):
    """Told before the client dials, refused by the handshake, and on a connection that is older."""
    old, fresh = invitation(made_days_ago=15), invitation()
    write_secret(tmp_path / "old.pem", old.to_pem())
    with pytest.raises(CertificateExpired, match=r"client\.invitation.*fedrec provision --add"):
        Credentials.load(tmp_path / "old.pem", "client.invitation")
    with serving(Bench.of(3), tmp_path) as found:
        with pytest.raises(Unreachable, match="The handshake failed: the other side closed"):
            apply(found, Identity.create("d"), old)
        monkeypatch.setattr(
            "fedrec_server.service.coordinator_service.certificate_of",
            lambda context: certificate_of(context) and old.certificate,
        )
        with pytest.raises(CertificateExpired):
            apply(found, Identity.create("d"), fresh)
        assert found.coordinator.engine.run.store.applicants() == []


def test_scenario_17_another_key(tmp_path):
    """An application counts with the invitation that signed it, and for the keys in it."""
    mine, yours, who = invitation(), invitation(), Identity.create("d")
    with serving(Bench.of(3), tmp_path) as found:
        with found.link(mine) as link, pytest.raises(BadSignature):
            link.apply(SignedApplication.make(who.public, yours).to_json())
        assert found.coordinator.engine.run.store.applicants() == []


def test_scenario_17_an_invitation_cannot_be_guessed(tmp_path):
    with serving(Bench.of(3), tmp_path) as found:
        for number in range(5):
            own = strangers("invitation", f"guess {number}", of="theirs")
            forged = Credentials(
                private_key=own.private_key,
                certificate=own.certificate,
                issuer=authority().issuer.certificate,
            )
            with pytest.raises(Unreachable, match="The handshake failed: the other side closed"):
                apply(found, Identity.create("guess"), forged)
        assert found.coordinator.engine.run.store.applicants() == []


def test_scenario_17_no_secret_is_kept_or_logged(tmp_path, capfd):
    """The database has the digest by which an invitation is remembered; neither has its key."""
    invited, who = invitation(), Identity.create("d")
    with serving(Bench.of(3), tmp_path) as found:
        apply(found, who, invited)
        with pytest.raises(InvitationUsed):
            apply(found, Identity.create("e"), invited)
    (key,) = sqlite3.connect(tmp_path / "state" / DATABASE).execute(
        "SELECT invitation FROM applicants"
    )
    application = SignedApplication.make(who.public, invited)
    assert key == (application.invitation_sha256,)
    secret = b"".join(invited.private_key.splitlines()[1:-1])
    seen = "".join(capfd.readouterr())
    assert "used" not in secret.decode() and secret[:40].decode() not in seen
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            assert secret[:40] not in path.read_bytes().replace(b"\n", b"")
