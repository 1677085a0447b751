"""Puppets that add what no user can, and what the authority publishes then.

Six puppets are two cells of three, nine are three; the spoiler is the last of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from client.round.test_what_is_sent import Vector, packed_without_checks
from client.support.authority_federation import AuthorityWorld
from client.support.fake_federation import FakeRound, World

from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.identity.public import verify
from fedrec.protection import VectorSpec
from fedrec.wire.messages import RevealStatement, manifest_digest
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER

ROW, WIDTH, BITS = 5, 4, 8


def inflated_row(layout: Any, vector: Vector, spoils: bool) -> None:
    """One user moves a row, which nobody else touches, 11,775 times as far as any can."""
    vector[layout.count_slice][ROW] = int(spoils)
    vector[ROW * WIDTH : (ROW + 1) * WIDTH] = 0
    vector[ROW * WIDTH] = (11_775 << BITS) * spoils


def denominator_negative(layout: Any, vector: Vector, spoils: bool) -> None:
    """Others moved a row by 1 each; two users are taken off, so that it is divided by fewer."""
    vector[layout.count_slice][ROW] = -2 if spoils else 1
    vector[ROW * WIDTH] = 0 if spoils else 1 << BITS


def users_over_cap(layout: Any, vector: Vector, spoils: bool) -> None:
    """As many users as a federation may have, beside those of the others."""
    if spoils:
        vector[layout.metrics_slice][METRIC_NAMES.index("participants")] = 16_384


Attack = Callable[[Any, Vector, bool], None]
ATTACKS: tuple[Attack, ...] = (inflated_row, denominator_negative, users_over_cap)


def spoilt(world: World, attack: Attack, monkeypatch: pytest.MonkeyPatch, *spoilers: int) -> None:
    """Let some puppets contribute what their own software would not; the others are honest."""
    honest = world.vector

    def vector(seed: int, round_: FakeRound | None = None) -> Vector:
        found = honest(seed, round_)
        if round_ is not None and round_.kind == "train":
            attack(world.round_vector(round_).layout, found, seed in spoilers)
        return found

    monkeypatch.setattr(world, "vector", vector)
    # Changed software does not check what it sends.
    monkeypatch.setattr(VectorSpec, "validated", lambda self, vector: vector)
    monkeypatch.setattr("fedrec.protection.packing.gmpy2.pack", packed_without_checks)


def state_of(world: AuthorityWorld) -> Any:
    return OpenedSums(world.keys.revealer.folder / STATE_FOLDER, read_only=True).state


def added(world: AuthorityWorld, round_: FakeRound, *numbers: int) -> bytes:
    """Return the sum of some puppets' contributions."""
    total = world.round_vector(round_).accumulator()
    for number in numbers:
        total.add(round_.contributions[world.puppets[number].client_id][1])
    return total.finish()


def opened_by(world: AuthorityWorld, said: RevealStatement, sealed: bytes) -> Vector:
    known = world.membership(world.puppets[0])
    vector = known.vector_of("train", len(known.catalogue))
    return vector.unpack(known.seal_of(said.round).unseal_aggregate(sealed), 1)


def check_published_over(
    world: AuthorityWorld, round_: FakeRound, paused: tuple[int, ...], *numbers: int
) -> None:
    """Check that the round's sum is that of these puppets, and who is named."""
    ((said, sealed),) = world.link.reveals
    verify(world.revealer.public.signing_key, said.statement(), said.signature)
    kept = tuple(round_.contributions[world.puppets[n].client_id][0] for n in numbers)
    assert said.paused == paused
    assert said.manifest_digest == manifest_digest(world.run, round_.number, kept)
    wanted = sum(world.vector(n, round_) for n in numbers)
    assert np.array_equal(opened_by(world, said, sealed), wanted)


def audited(world: AuthorityWorld) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in world.refusals().splitlines()]
    return [(line["event"], line["code"]) for line in lines]
