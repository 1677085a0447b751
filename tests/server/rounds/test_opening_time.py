"""How long clients have to report: what a sum of entries costs to open follows from its clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.support.made_messages import rules as plain_rules
from server.support.world import World

from fedrec.protection import Paillier, ProtectionPlan, SegmentSpec, VectorSpec
from fedrec_server.rounds.changes import RoundMeasured
from fedrec_server.rounds.state import Rules


def rules(entries: ProtectionPlan | None = None, **rounds: float) -> Rules:
    return replace(plain_rules(**rounds), entries=entries)


@pytest.fixture(scope="module")
def entries() -> ProtectionPlan:
    table = SegmentSpec(name="table", length=64_000, max_abs_sum=2**31, entries=1000)
    counts = SegmentSpec(name="counts", length=1, max_abs_sum=1, signed=False)
    spec = VectorSpec(segments=(table, counts), max_summands=100)
    return Paillier.plan(spec, preset="single-3072")


def test_it_is_the_price_of_the_expected_union(entries):
    found = rules(entries=entries, report_seconds=30)
    # The sum is fetched: 64,000 (1 - (63/64)^11) = 10,180.0... entries and a block of counts at
    # .03 s; a head of 44 bytes, 768 for each block and 4 for each index, at 100 kB/s.
    union = 64_000 * (1 - (63 / 64) ** 11)
    whole = int(union) + 1 + 1
    fetching = whole * 0.03 + (44 + whole * 768 + (whole - 1) * 4) / 1e5
    assert found.report_seconds("train", 11) == pytest.approx(fetching)
    # A count round has no entries, and the setting is the least there is.
    assert found.report_seconds("count", 8) == 30
    patient = rules(entries=entries, report_seconds=10_000)
    assert patient.report_seconds("train", 8) == 10_000
    assert rules(report_seconds=30).report_seconds("train", 8) == 30


def test_who_still_opens_is_waited_for(entries):
    world = World.new(rules(entries=entries, report_seconds=5, total=1), 4)
    for _ in range(2):
        world.tick(*range(4))
        for number in range(4):
            world.upload(number)
        world.sum()
        if world.state.trained:
            break
        world.report(0)
        world.report(1)
    seconds = world.state.rules.report_seconds("train", 4)
    assert seconds > 60
    assert world.tick(*range(4), seconds=seconds - 1) == ()
    (measured,) = world.tick(*range(4), seconds=2)
    assert isinstance(measured, RoundMeasured)
