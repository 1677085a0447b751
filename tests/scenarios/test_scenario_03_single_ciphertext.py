"""Scenario 3: a coordinator that wants anything opened but the sum of a round.

The client is a key holder of the round; the coordinator is hostile and has every honest member's
signed contribution. Each attack ends with nothing revealed and an event in the audit log.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from client.fake_federation import FakeRound, World
from client.key_watch import KeyWatch, ask, puppet_round, put_watch, refused

from fedrec.errors import BadSignature
from fedrec.identity.identity import Identity
from fedrec.wire.messages import Reveal


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> KeyWatch:
    return put_watch(monkeypatch)


def passed_off(world: World, round_: FakeRound, total: bytes) -> Reveal:
    """Return the task to open these bytes as the sum of the round's contributions."""
    return world.reveal(round_, sum_length=len(total), sum_digest=blake3(total).digest())


def one_message(world: World, round_: FakeRound) -> bytes:
    victim = round_.contributions[world.puppets[0].client_id][1]
    total = world.protection.accumulator(world.context)
    total.add(victim)
    return total.finish()


def counted_twice(world: World, round_: FakeRound) -> bytes:
    total = world.protection.accumulator(world.context)
    payloads = [payload for _, payload in round_.contributions.values()]
    for payload in (*payloads[:2], payloads[0]):
        total.add(payload)
    return total.finish()


def slots_masked(world: World, round_: FakeRound) -> bytes:
    """Change the body as whoever multiplies by a plaintext changes it: every residue."""
    total = bytearray(world.total(round_))
    body = np.frombuffer(total, dtype=np.uint8, offset=44)
    total[44:] = np.bitwise_and(body, 0x0F).tobytes()
    return bytes(total)


@pytest.mark.parametrize("forged", [one_message, counted_twice, slots_masked])
def test_scenario_03_another_sum_with_enough_valid_digests(
    world: World, key: KeyWatch, forged: Callable[[World, FakeRound], bytes]
) -> None:
    round_ = puppet_round(world)
    total = forged(world, round_)
    assert total != world.total(round_)
    ask(world, lambda: passed_off(world, round_, total))
    refused(world, key, "is not the sum of its 3 contributions")


def test_scenario_03_one_client_listed_twice(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)
    headers = round_.headers
    ask(world, lambda: world.reveal(round_, contributions=(*headers[:2], headers[0])))
    refused(world, key, "lists a client twice")


def test_scenario_03_fewer_than_the_minimum(world: World, key: KeyWatch) -> None:
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "has 2 contributions, expected at least 3")


def test_scenario_03_another_cohort_for_the_same_round(tmp_path: Path, key: KeyWatch) -> None:
    """The first list is opened; the second, which differs by one client, never is."""
    world = World(tmp_path, n_puppets=4)
    round_ = world.open(1)
    world.contribute(round_)
    ask(world, lambda: world.reveal(round_))
    assert len(key.opened) == 1
    round_.contributions.pop(world.puppets[3].client_id)
    ask(world, lambda: world.reveal(round_))
    assert len(key.opened) == 1
    assert len(world.link.reveals) == 1
    assert '"event":"reveal_refused"' in world.audit()


def test_scenario_03_clients_that_the_coordinator_enrolled(world: World, key: KeyWatch) -> None:
    """Two Sybils around one victim: they have keys and tokens, but nobody signed them."""
    round_ = world.open(1)
    world.contribute(round_, world.puppets[0])
    for name in ("sybil 1", "sybil 2"):
        payload = world.half().protect(world.vector(1))
        world.put(round_, Identity.create(name), payload)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "is not among the 4 members")


def test_scenario_03_exchanged_x25519_keys(tmp_path: Path, key: KeyWatch) -> None:
    """The coordinator lists a member with an exchange key of its own: the roster is signed."""
    world = World(tmp_path)
    roster = world.epoch.roster
    mine = Identity.create("coordinator")
    index = [m.client_id for m in roster.members].index(world.puppets[0].client_id)
    swapped = replace(roster.members[index], exchange_key=mine.public.exchange_key)
    members = (*roster.members[:index], swapped, *roster.members[index + 1 :])
    forged = replace(roster, members=members)
    honest = world.info
    world.info = lambda **changes: honest(roster_json=forged.to_json())  # type: ignore[method-assign]
    with pytest.raises(BadSignature):
        world.app().run()
    assert world.link.uploads == []
