"""Scenario 23: a coordinator that gives one client another model or round plan than the others.

What a client was told, and a digest of its model, are in every signed update. So a client that was
singled out is seen by every client that checks the round: the key authority before it opens a sum
(`tests/authority/opening/test_sum_opening.py`), readers before they apply it. And a client itself
checks what it can know before it uploads.
"""

from dataclasses import replace

import pytest
from world.fake_authority import AuthorityWorld
from world.fake_federation import World

from fedrec.errors import BadSignature, PlanMismatch, RefusedError


@pytest.mark.parametrize("whose", ["nobody's", "members", "authority"])
def test_scenario_23_a_false_model_for_one_client(tmp_path, whose):
    """The published sum of a round is replaced on its way to one client."""
    if whose == "authority":
        world: World = AuthorityWorld(tmp_path)
    else:
        world = World(tmp_path, protection="bfv" if whose == "members" else "none")
    round_ = world.play(1)
    assert round_.published is not None
    honest = round_.published
    if whose == "authority":
        known = world.membership(world.puppets[0])
        seal, vector = known.seal_of(round_.number), known.vector_of("train", len(known.catalogue))
        aggregate = vector.unpack(seal.unseal_aggregate(honest.blob), 1)
        aggregate[0] += 1
        false = replace(honest, blob=seal.seal_aggregate(vector.pack(aggregate)))
        expected: type[Exception] = BadSignature
    else:
        # No authority vouches for such a sum. The client follows, and is found out with its next
        # update: here the others' updates of round 2 show it that its model is another one.
        other = world.open(2)
        world.contribute(other)
        world.publish(other)
        blob = changed(honest) if whose == "nobody's" else one_twice(world, round_)
        false, expected = replace(honest, blob=blob), RefusedError
    round_.published = false
    with pytest.raises(expected):
        world.app().run()
    assert '"event":"published_round_refused"' in world.audit()
    assert world.link.uploads == []
    assert world.link.reports == []


def one_twice(world, round_):
    """Return a ciphertext sum in which one client's update stands for another's."""
    payloads = [payload for _, payload in round_.contributions.values()]
    total = world.protection.accumulator(world.context)
    for payload in (*payloads[:-1], payloads[0]):
        total.add(payload)
    return total.finish()


def test_scenario_23_another_plan_for_one_client(tmp_path):
    world = World(tmp_path)
    honest = world.info

    def other(**changes):
        info = honest(**changes)
        plan = info.plan_json.replace(b'"minimum_item_users":1', b'"minimum_item_users":0')
        plan = plan.replace(b'"user_fraction":1.0', b'"user_fraction":0.5')
        assert plan != info.plan_json
        return replace(info, plan_json=plan)

    world.info = other  # type: ignore[method-assign]
    with pytest.raises(PlanMismatch):
        world.app().run()
    assert world.link.uploads == []


def changed(found):
    """Return a plain sum with the first value of its body one higher."""
    blob = bytearray(found.blob)
    blob[44] ^= 1
    return bytes(blob)
