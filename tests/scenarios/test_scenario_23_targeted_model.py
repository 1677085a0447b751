"""Scenario 23: a coordinator that gives one client another model or round plan than the others.

What a client was told, and a digest of its model, are in every signed update. So a client that was
singled out is seen by everybody who checks the round: key holders before they open anything,
readers before they apply it. And a client itself checks what it can know before it uploads.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from client.fake_federation import World
from client.key_watch import KeyWatch, ask, put_watch, refused

from fedrec.errors import BadSignature, PlanMismatch, RefusedError
from fedrec.wire.messages import PublishedRound


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> KeyWatch:
    return put_watch(monkeypatch)


@pytest.mark.parametrize(
    "changes",
    [
        {"base_state": bytes(32)},
        {"committee": bytes(32)},
        {"kind": "evaluate"},
        {"base_round": 7},
        {"plan_fingerprint": "0" * 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_scenario_23_nothing_is_opened_if_one_was_told_otherwise(
    tmp_path: Path, key: KeyWatch, changes: dict[str, Any]
) -> None:
    world = World(tmp_path)
    round_ = world.open(1)
    world.contribute(round_)
    victim = world.puppets[0]
    payload = round_.contributions[victim.client_id][1]
    world.put(round_, victim, payload, **changes)
    ask(world, lambda: world.reveal(round_))
    refused(world, key)


def test_scenario_23_a_client_refuses_a_committee_of_the_coordinators_choice(
    tmp_path: Path,
) -> None:
    """It uploads nothing: whoever opens its round would have been chosen by the coordinator."""
    world = World(tmp_path, n_puppets=5)
    round_ = world.ask_to_train(1)
    honest = world.link.script.popleft()

    def chosen() -> Any:
        task = honest()
        return replace(task, committee=task.committee[::-1])

    world.link.script.append(chosen)
    with pytest.raises(RefusedError, match="not the one that was drawn"):
        world.app().run()
    assert world.link.uploads == []
    assert world.identity.client_id not in round_.contributions
    assert '"event":"round_refused"' in world.audit()


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_scenario_23_a_false_model_for_one_client(tmp_path: Path, protection: str) -> None:
    """The published sum of a round is replaced on its way to one client."""
    world = World(tmp_path, protection=protection)
    round_ = world.play(1)
    other = world.open(2)
    world.contribute(other)
    assert round_.published is not None
    honest = round_.published
    if protection == "none":
        false = replace(honest, blob=changed(honest))
    else:
        known = world.membership(world.puppets[0])
        seal = known.seal_of(round_.number, round_.kind)
        aggregate = known.vector_of("train", len(known.catalogue)).unpack(
            seal.unseal_aggregate(honest.blob), 1
        )
        aggregate[0] += 1
        false = replace(
            honest,
            blob=seal.seal_aggregate(
                known.vector_of("train", len(known.catalogue)).pack(aggregate)
            ),
        )
    round_.published = false
    if protection == "none":
        # Nobody vouches for a plain sum. The client follows, and is found out with its next
        # update: here the others' updates of round 2 show it that its model is another one.
        round_.published = honest
        world.publish(other)
        round_.published = false
        expected: type[Exception] = RefusedError
    else:
        expected = BadSignature
    with pytest.raises(expected):
        world.app().run()
    assert '"event":"published_round_refused"' in world.audit()
    assert world.link.uploads == []


def test_scenario_23_another_plan_for_one_client(tmp_path: Path) -> None:
    world = World(tmp_path)
    honest = world.info

    def other(**changes: Any) -> Any:
        info = honest(**changes)
        plan = info.plan_json.replace(b'"minimum_item_users":1', b'"minimum_item_users":0')
        plan = plan.replace(b'"user_fraction":1.0', b'"user_fraction":0.5')
        assert plan != info.plan_json
        return replace(info, plan_json=plan)

    world.info = other  # type: ignore[method-assign]
    with pytest.raises(PlanMismatch):
        world.app().run()
    assert world.link.uploads == []


def changed(found: PublishedRound) -> bytes:
    """Return a plain sum with the first value of its body one higher."""
    blob = bytearray(found.blob)
    blob[44] ^= 1
    return bytes(blob)
