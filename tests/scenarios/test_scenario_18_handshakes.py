"""Scenario 18: who may call follows from the certificate's key and the roster, call by call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from server.peers.test_key_rotation import after, epoch
from world.bench import plan_of
from world.engine import (
    Bench,
    authority,
    credentials,
    identity,
    operator,
)
from world.serving import Serving, serving

from fedrec.errors import CertificateExpired, KeysError, NotInRoster, Unreachable, WrongIdentity
from fedrec.identity.certificates import Credentials, Issuer
from fedrec.ids import RoundId
from fedrec.wire.grpc_calls import from_rpc_error
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import StepMessage

FIRST = RoundId(1)
Call = Callable[[Serving, GrpcLink], object]


def masks(found, link):
    return link.submit_masks(
        StepMessage(
            federation="movies",
            run=found.run,
            round=FIRST,
            epoch=1,
            client_id=identity(1).client_id,
            step="keys",
            body=b"body",
            signature=bytes(64),
        )
    )


def update(found, link):
    payload = found.bench.payload(1, 1)
    return link.submit_update(found.bench.header(1, 1, payload, found.run), payload)


CALLS: dict[str, Call] = {
    # What opens sums is the revealer's to fetch, and refused to members whatever they say.
    "GetFederation": lambda found, link: link.federation(identity(1).client_id),
    "GetCatalogue": lambda found, link: link.catalogue(identity(1).client_id),
    "NextTask": lambda found, link: link.next_task(
        identity(1).client_id, found.run, RoundId(0), wait_seconds=0.0
    ),
    "FetchPublished": lambda found, link: link.published(
        identity(1).client_id, found.run, RoundId(0)
    ),
    "FetchSnapshot": lambda found, link: link.snapshot(
        identity(1).client_id, found.run, RoundId(0)
    ),
    "FetchOwnModel": lambda found, link: link.own_model(
        identity(1).client_id, found.run, FIRST, "smoothed_item_embedding"
    ),
    "FetchMasks": lambda found, link: link.masks(identity(1).client_id, found.run, FIRST, "keys"),
    "GetUploadStatus": lambda found, link: link._status(
        found.bench.header(1, 1, found.bench.payload(1, 1), found.run)
    ),
    "SubmitUpdate": update,
    "SubmitMasks": masks,
}


def test_scenario_18_cert_A_says_B(tmp_path):
    """A member's certificate and another member's id, properly signed or not: in no call."""
    with serving(Bench.of(3), tmp_path) as found:
        found.come(range(3))
        for name, call in CALLS.items():
            with found.link(0) as link, pytest.raises(WrongIdentity) as seen:
                call(found, link)
            assert seen.value.code == "wrong_identity", name
        state = found.coordinator.engine.run.state
        assert state.current is not None and not state.current.accepted


def test_scenario_18_removed_member_open_connection(tmp_path):
    """Every call on the same connection is refused, in either epoch's name; others go on."""
    bench = Bench.of(4, minimum_clients=3)
    with serving(bench, tmp_path) as found, found.link(1) as gone, found.link(0) as stays:
        assert gone.federation(identity(1).client_id).epoch == 1
        later = epoch(bench, 2, 0, 2, 3)
        found.do(found.coordinator.engine.rotation.install(later.to_json()))
        for serves in (found, replace(found, bench=after(bench, later))):
            for call in CALLS.values():
                with pytest.raises(NotInRoster) as seen:
                    call(serves, gone)
                assert seen.value.code == "not_a_member"
        assert stays.federation(identity(0).client_id).epoch == 2


def test_scenario_18_an_operator_that_was_taken_off_the_list(tmp_path):
    from fedrec.wire.admin_link import AdminLink

    other = authority().issuer.credentials("operator", "another")
    with serving(Bench.of(3), tmp_path) as found:
        listed = tmp_path / "operator.crt"
        first, second = AdminLink(found.address, operator()), AdminLink(found.address, other)
        try:
            assert first.status().federation == "movies"
            with pytest.raises(NotInRoster):
                second.status()
            listed.write_bytes(operator().certificate + other.certificate)
            assert second.status().federation == "movies"
            listed.write_bytes(other.certificate)
            with pytest.raises(NotInRoster):
                first.status()
        finally:
            first.close()
            second.close()


def test_scenario_18_nothing_is_read_of_a_stranger(tmp_path):
    """Bytes that are no message are told to members as such; others hear who they are not."""
    removed = credentials(7)
    with serving(Bench.of(3), tmp_path) as found:
        for who, code in ((0, "protocol"), (removed, "not_a_member")):
            with found.channel(who) as channel:
                method = channel.unary_unary("/fedrec.wire.v1.Coordinator/NextTask")
                with pytest.raises(grpc.RpcError) as seen:
                    method(b"\xff\xff\xff", timeout=5)
                assert from_rpc_error(seen.value).code == code


def test_scenario_18_expired_or_of_another_authority_is_told_before_the_call(tmp_path):
    """And a client that calls all the same, with changed software, does not get in."""
    issuer, public = authority().issuer, identity(0).public
    long_ago = datetime.now(UTC) - timedelta(days=4000)
    expired = identity(0).credentials(
        issuer.issue("client", "c", public.tls_key, now=long_ago), issuer.certificate
    )
    with pytest.raises(CertificateExpired, match=r"client\.certificate.*clock"):
        expired.check("client.certificate")
    foreign = identity(0).credentials(
        Issuer.create().issue("client", "c", public.tls_key), issuer.certificate
    )
    with pytest.raises(KeysError, match="another federation"):
        foreign.check("client.certificate")
    with serving(Bench.of(3), tmp_path) as found:
        for own in (expired, foreign):
            with found.link(own) as link, pytest.raises(Unreachable) as seen:
                link.federation(public.client_id)
            assert "The handshake failed: the other side closed" in seen.value.message


@pytest.mark.parametrize("hours", [-1, 1])
def test_scenario_18_a_clock_off_by_an_hour_keeps_no_client_out(tmp_path, hours):
    issuer, public = authority().issuer, identity(0).public
    then = datetime.now(UTC) + timedelta(hours=hours)
    own = identity(0).credentials(
        issuer.issue("client", "c", public.tls_key, now=then), issuer.certificate
    )
    own.check("client.certificate")
    with serving(Bench.of(3), tmp_path) as found, found.link(own) as link:
        assert link.federation(public.client_id).run == found.run


def test_scenario_18_a_refused_handshake_is_told_once_and_counted(found, capfd):
    """Good certificates, and the coordinator of another federation at the address."""
    ours, theirs = found(plan_of("none", 3, total=1)), found(plan_of("none", 3, total=1))
    lost = ours.client(0, client__coordinator=theirs.address, maximum_attempts=4)
    failure = lost.failure()
    assert (failure.code, failure.exit_code) == ("unreachable", 3)
    text = "The handshake failed: another authority issued the coordinator's certificate."
    assert failure.message == text and "client.authority_key" in failure.remedy
    assert [event.name for event in lost.events] == ["starting", "unreachable"]
    assert text in lost.events[-1].detail
    assert "".join(capfd.readouterr()) == "", "the library says nothing of its own"


def test_scenario_18_a_certificate_for_another_key_is_named(found):
    ours = found(plan_of("none", 3, total=1))
    other = ours.bench.state(1) / "client.crt"
    settings = ours.bench.client_settings(0, ours.address, client__certificate=str(other))
    from fedrec_client.connecting import open_link

    with pytest.raises(KeysError, match=r"client\.certificate.*another key"):
        open_link(settings)
    assert Credentials.load(ours.bench.workspace.operator, "--operator").issuer
