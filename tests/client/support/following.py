"""A client that follows a federation, and snapshots that members of it made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from client.support.fake_federation import World

from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.wire.messages import Snapshot, Wait
from fedrec_client.state.private_store import PrivateStore


def version(world: World) -> int:
    """Return the version of the model that the client has on disk."""
    return PrivateStore(world.state, read_only=True).state.version


def follow(world: World) -> int:
    """Let the client catch up, and return the version that it ends with."""
    world.link.script.append(Wait)
    return world.app().run().version


def played(world: World) -> None:
    """Publish three rounds."""
    world.play(1, "count")
    world.play(2)
    world.play(3)


def crossed(world: World) -> None:
    """Let the federation go on with new keys after round 3."""
    played(world)
    world.epoch = world.make_epoch(epoch=2)


def make_snapshot(world: World, number: int, shared: SharedState | None = None) -> Snapshot:
    """Return what another member sends after a round, correct unless `shared` is given."""
    return sealed_snapshot(world, number, world.as_sent(shared or world.shared[number]))


def sealed_snapshot(world: World, number: int, raw: bytes) -> Snapshot:
    """Return a snapshot whose seal opens to any bytes, and for whose model members vouch."""
    assert world.rounds[number].published is not None
    maker = world.membership(world.puppets[2])
    return Snapshot(
        round=RoundId(number),
        epoch=1,
        statement=None,
        reports=tuple(world.report(number, puppet) for puppet in world.puppets[:2]),
        blob=maker.seal_of(RoundId(number)).seal_snapshot(raw),
    )


def attested(world: World, *makers: Identity, **changes: Any) -> Snapshot:
    """Return a snapshot of round 3 for which members of the new epoch vouch."""
    reports = []
    for maker in makers or world.puppets[:2]:
        changed = replace(world.report(3, maker), **changes)
        reports.append(replace(changed, signature=maker.sign(changed.statement())))
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3))
    return Snapshot(
        round=RoundId(3),
        epoch=2,
        statement=None,
        reports=tuple(reports),
        blob=seal.seal_snapshot(world.as_sent(world.shared[3])),
    )
