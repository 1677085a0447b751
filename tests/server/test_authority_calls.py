"""What the key authority may call where it opens sums, and members may not any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from server.support.federations import Bench, identity
from server.support.serving import ADMIN_TOKEN, TOKEN, Serving, serving, settings_of

from fedrec.errors import NotInRoster, RefusedError, SettingsError, Unauthenticated
from fedrec.ids import ClientId, RoundId
from fedrec.wire.grpc_link import GrpcLink
from fedrec_server.app import Coordinator

FIRST = RoundId(1)
STRANGER = ClientId("f" * 64)


def held_by_the_authority() -> Bench:
    bench = Bench.of(3, minimum_clients=2)
    protection = bench.federation.plan.protection.model_copy(update={"key_holder": "authority"})
    plan = bench.federation.plan.model_copy(update={"protection": protection})
    return Bench(federation=replace(bench.federation, plan=plan))


def contribution(link: GrpcLink, run: str) -> None:
    link.contribution(identity(0).client_id, run, FIRST, identity(1).client_id)


def round_sum(link: GrpcLink, run: str) -> None:
    link.round_sum(identity(0).client_id, run, FIRST)


FETCHES = [contribution, round_sum]
Fetch = Callable[[GrpcLink, str], None]


@pytest.mark.parametrize("fetch", FETCHES)
def test_members_token_fetches_nobodys_update(tmp_path: Path, fetch: Fetch) -> None:
    with serving(held_by_the_authority(), tmp_path) as found:
        with found.link(TOKEN) as link, pytest.raises(Unauthenticated):
            fetch(link, found.run)
        with found.link(ADMIN_TOKEN) as link, pytest.raises(RefusedError, match="Refused"):
            fetch(link, found.run)


@pytest.mark.parametrize("fetch", FETCHES)
def test_where_members_decrypt_nobody_fetches_an_update(tmp_path: Path, fetch: Fetch) -> None:
    with serving(Bench.of(3, minimum_clients=2), tmp_path) as found:
        with found.link(TOKEN) as link, pytest.raises(RefusedError, match="Refused"):
            fetch(link, found.run)
        with found.link(ADMIN_TOKEN) as link, pytest.raises(Unauthenticated):
            fetch(link, found.run)


def asked(found: Serving, token: str) -> None:
    with found.link(token) as link:
        link.next_task(STRANGER, found.run, RoundId(0), wait_seconds=0.0)


def test_the_operators_token_asks_for_tasks_where_its_holder_has_any(tmp_path: Path) -> None:
    for folder in ("a", "m"):
        (tmp_path / folder).mkdir()
    with serving(held_by_the_authority(), tmp_path / "a") as found:
        for token in (TOKEN, ADMIN_TOKEN):
            with pytest.raises(NotInRoster):
                asked(found, token)
        with pytest.raises(Unauthenticated):
            asked(found, "w" * 32)
    with serving(Bench.of(3), tmp_path / "m") as found, pytest.raises(Unauthenticated):
        asked(found, ADMIN_TOKEN)


def test_a_coordinator_without_an_operators_token_does_not_start(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, admin_token_file=None)
    with pytest.raises(SettingsError, match=r"coordinator\.admin_token_file is missing"):
        Coordinator(settings, held_by_the_authority().federation)
    Coordinator(settings, Bench.of(3).federation)
