"""Who may fetch contributions and sums: the revealer, or the members where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from server.support.federations import Bench, authority, credentials, identity, operator
from server.support.serving import Serving, serving

from fedrec.errors import NotInRoster, RefusedError
from fedrec.identity.certificates import Credentials
from fedrec.ids import RoundId
from fedrec.wire.grpc_link import GrpcLink

FIRST, REVEALER = RoundId(1), 1000


def held_by_the_authority() -> Bench:
    """Return a federation whose revealer is client 1000."""
    bench = Bench.of(3, minimum_clients=2)
    roster = bench.federation.keys.roster
    keys = authority().new_epoch(
        federation=roster.federation,
        epoch=1,
        members=roster.members,
        minimum_summands=1,
        protection=roster.protection,
        protection_fingerprint=roster.protection_fingerprint,
        server_context=bench.federation.keys.server_context,
        protection_secret=b"",
        revealer=identity(REVEALER).public,
    )
    return Bench(federation=replace(bench.federation, keys=keys))


def contribution(link: GrpcLink, who: int, run: str) -> None:
    link.contribution(identity(who).client_id, run, FIRST, identity(1).client_id)


def round_sum(link: GrpcLink, who: int, run: str) -> None:
    link.round_sum(identity(who).client_id, run, FIRST)


Fetch = Callable[[GrpcLink, int, str], None]


def refusal(found: Serving, fetch: Fetch, who: Credentials | int) -> str:
    """Return what is logged of a fetch that is refused; the caller gets no more than "Refused"."""
    named = who if isinstance(who, int) else 0
    with found.link(who) as link, pytest.raises(RefusedError, match="Refused") as told:
        fetch(link, named, found.run)
    assert type(told.value) is RefusedError
    return told.value.code


@pytest.mark.parametrize("fetch", [contribution, round_sum])
def test_member_fetches_contribution(tmp_path, fetch, capfd):
    """Where the authority opens sums nobody but the revealer gets them, not even in a round."""
    with serving(held_by_the_authority(), tmp_path) as found:
        refusal(found, fetch, 0)
        # The revealer passes, and is told that no round is being revealed.
        refusal(found, fetch, REVEALER)
    told = capfd.readouterr().out
    assert told.count("called by somebody who is member") == 1
    assert told.count("Round 1 is not being revealed") == 1


@pytest.mark.parametrize("fetch", [contribution, round_sum])
@pytest.mark.parametrize("holder", ["authority", "members"])
def test_operator_fetches_contribution(tmp_path, fetch, holder, capfd):
    bench = held_by_the_authority() if holder == "authority" else Bench.of(3)
    with serving(bench, tmp_path) as found:
        refusal(found, fetch, operator())
    assert "called by somebody who is operator" in capfd.readouterr().out


@pytest.mark.parametrize("fetch", [contribution, round_sum])
def test_where_members_decrypt_nobody_fetches_an_update(tmp_path, fetch, capfd):
    with serving(Bench.of(3, minimum_clients=2), tmp_path) as found:
        refusal(found, fetch, 0)
        with found.link(REVEALER) as link, pytest.raises(NotInRoster):
            fetch(link, REVEALER, found.run)
    assert "called by somebody who is member" in capfd.readouterr().out


def test_operators_do_what_operators_do_and_nothing_else(tmp_path):
    with serving(held_by_the_authority(), tmp_path) as found:
        with found.link(operator()) as link, pytest.raises(RefusedError):
            link.next_task(identity(0).client_id, found.run, RoundId(0), wait_seconds=0.0)
        found.task(REVEALER)
        assert credentials(0).certificate != operator().certificate
