"""A client that follows a federation, and snapshots that members of it made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from client.fake_federation import World

from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.wire.messages import UNSAID, RevealStatement, Snapshot, Wait
from fedrec_client.private_store import PrivateStore


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
    """Return a snapshot whose seal opens to any bytes."""
    round_ = world.rounds[number]
    assert round_.published is not None
    maker = world.membership(world.puppets[2])
    statement = maker.sign_statement(
        replace(round_.published.statements[0], client_id=maker.client_id)
    )
    return Snapshot(
        round=RoundId(number),
        epoch=1,
        statements=(statement,),
        sealed=True,
        blob=maker.seal_of(RoundId(number), "train").seal_snapshot(raw),
    )


def attested(world: World, *makers: Identity, **changes: Any) -> Snapshot:
    """Return a snapshot of round 3 for which members of the new epoch vouch."""
    shared = world.shared[3]
    statements = []
    for maker in makers or world.puppets[:2]:
        known = world.membership(maker)
        rows = known.stated_rows(world.learner.travelling.rows("train", shared))
        statement = RevealStatement(
            federation="films",
            run=world.run,
            round=RoundId(3),
            epoch=2,
            client_id=maker.client_id,
            manifest_digest=UNSAID,
            aggregate_tag=UNSAID,
            state_tag=known.seal_of(RoundId(3), "train").state_tag(shared.canonical_bytes()),
            published_digest=UNSAID,
            locked_metrics=b"",
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
        )
        statements.append(known.sign_statement(replace(statement, **changes)))
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3), "train")
    return Snapshot(
        round=RoundId(3),
        epoch=2,
        statements=tuple(statements),
        sealed=True,
        blob=seal.seal_snapshot(world.as_sent(shared)),
    )
