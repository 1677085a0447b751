"""What a client keeps of rosters, and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedrec.clock import SystemClock
from fedrec.errors import RosterBreaksCells
from fedrec.follower.round_journal import AUDIT_FILE, AuditLog
from fedrec.identity.cells import Cell, Partition, Standing
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec_client.joining import RosterChain, kept_roster
from fedrec_client.state.private_store import PrivateStore

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


def chain_in(store: PrivateStore) -> RosterChain:
    return RosterChain(store, AuditLog(store.folder, SystemClock()))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PrivateStore]:
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
