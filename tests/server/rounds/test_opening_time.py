"""How long key holders have: what a sum of entries costs to open follows from a round's clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.support.world import World
from server.support.world import rules as plain_rules

from fedrec.protection import Paillier, ProtectionPlan, SegmentSpec, VectorSpec
from fedrec_server.rounds.changes import HolderAsked
from fedrec_server.rounds.state import Rules


def rules(entries: ProtectionPlan | None = None, **rounds: float) -> Rules:
    return replace(plain_rules(**rounds), entries=entries)


@pytest.fixture(scope="module")
def entries() -> ProtectionPlan:
    table = SegmentSpec(name="table", length=64_000, max_abs_sum=2**31, entries=1000)
    counts = SegmentSpec(name="counts", length=1, max_abs_sum=1, signed=False)
    spec = VectorSpec(segments=(table, counts), max_summands=100)
    return Paillier.plan(spec, preset="single-3072")


def test_it_is_the_price_of_the_expected_union(entries: ProtectionPlan) -> None:
    found = rules(entries=entries, recompute_limit=10, reveal_timeout_seconds=30)
    # 8 clients: 64,000 (1 - (63/64)^8) = 7575.x entries and a block of counts at .03 s; 8 messages
    # of 44 + 1000 (4 + 768) + 768 bytes at 100 kB/s; 8 x 1001 multiplications at .1 ms.
    adding = 7577 * 0.03 + 8 * 772_812 / 1e5 + 8 * 1001 * 1e-4
    assert found.reveal_seconds("train", 8) == pytest.approx(adding)
    # 11 clients are above the limit: the sum is fetched, 64,000 (1 - (63/64)^11) = 10,180.0...
    union = 64_000 * (1 - (63 / 64) ** 11)
    whole = int(union) + 1 + 1
    fetching = whole * 0.03 + (44 + whole * 768 + (whole - 1) * 4) / 1e5
    assert found.reveal_seconds("train", 11) == pytest.approx(fetching)
    # A count round has no entries, and the setting is the least there is.
    assert found.reveal_seconds("count", 8) == 30
    patient = rules(entries=entries, reveal_timeout_seconds=10_000)
    assert patient.reveal_seconds("train", 8) == 10_000
    assert rules(reveal_timeout_seconds=30).reveal_seconds("train", 8) == 30


def test_a_holder_that_still_opens_is_not_replaced(entries: ProtectionPlan) -> None:
    world = World.new(rules(entries=entries, reveal_timeout_seconds=5), 4)
    world.tick(*range(4))
    for number in range(4):
        world.upload(number)
    round_ = world.state.current
    assert round_ is not None
    world.state = replace(world.state, current=replace(round_, kind="train"))
    world.sum()
    seconds = world.state.rules.reveal_seconds("train", 4)
    assert seconds > 60
    assert world.tick(*range(4), seconds=seconds - 1) == ()
    (asked,) = world.tick(*range(4), seconds=2)
    assert isinstance(asked, HolderAsked)
