"""A client of four that adds what no user can: refused after opening, nothing applied, audited.

The others are three honest members; who reads the sum is the authority, every client where they
share its key, or under masks the coordinator and every client.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from client.support.authority_federation import AuthorityWorld
from client.support.fake_federation import FakeRound, World
from client.support.key_watch import put_watch
from client.support.masked_federation import MaskedWorld
from numpy.typing import NDArray

from fedrec.errors import SumOutOfBounds
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.protection import VectorSpec
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow

Vector = NDArray[np.int64]

ROW, WIDTH, BITS = 5, 4, 8
PLAN: dict[str, Any] = {
    "federation": {"name": "films", "seed": 7, "minimum_item_users": 1},
    "algorithm": {"dim": WIDTH, "local_epochs": 1, "batch_size": 8},
    "update": {"structure": "dense", "clip": 1.0, "fraction_bits": BITS},
}
"""An honest user moves a value of a row by 1 at most: 256 steps."""
MOVED = 11_775
N_PUPPETS = 4


class Attack:
    """What the last of four members does to its vector, and the others' as it needs them.

    Attributes:
        moves: by how much the row moves where nobody checks.
        said: what is said of the sum.
    """

    def __init__(
        self, change: Callable[[Any, Vector, bool], None], moves: float, *said: str
    ) -> None:
        self.change, self.moves, self.said = change, moves, said


def _inflated_row(layout: Any, vector: Vector, spoils: bool) -> None:
    """One user more in a row that the others' users do not touch, who moved it 11,775 times as far
    as any can; each part is within what the protection has room for.
    """
    vector[layout.count_slice][ROW] = int(spoils)
    vector[ROW * WIDTH] = (MOVED << BITS) * spoils


def _denominator_negative(layout: Any, vector: Vector, spoils: bool) -> None:
    """Three users moved a row by 1 each, and two are taken off: their sum is divided by one."""
    vector[layout.count_slice][ROW] = -2 if spoils else 1
    vector[ROW * WIDTH] = 0 if spoils else 1 << BITS


def _users_over_cap(layout: Any, vector: Vector, spoils: bool) -> None:
    """All users that a federation may have, and those of the others beside them."""
    most = 16_384
    metrics = vector[layout.metrics_slice]
    metrics[METRIC_NAMES.index("participants")] = most if spoils else 1
    vector[layout.count_slice][ROW] = 1
    vector[ROW * WIDTH] = 1 << BITS


ATTACKS = {
    "inflated_row": Attack(
        _inflated_row,
        MOVED,
        f"item_embedding of item row {ROW} is {MOVED << BITS}, allowed is -256 to 256",
    ),
    "denominator_negative": Attack(
        _denominator_negative,
        3.0,
        f"item_embedding of item row {ROW} is 768, allowed is -256 to 256",
    ),
    "users_over_cap": Attack(_users_over_cap, 1.0, "participants is 16387, allowed is 0 to 16384"),
}


@pytest.fixture(params=ATTACKS)
def attack(request: pytest.FixtureRequest) -> Attack:
    return ATTACKS[request.param]


def spoilt(world: World, attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last puppet contribute what its own software would not; the others are honest."""
    honest = world.vector

    def vector(seed: int, round_: FakeRound | None = None) -> Vector:
        found = honest(seed, round_)
        if round_ is not None and round_.kind == "train" and round_.number == 1:
            attack.change(world.round_vector(round_).layout, found, seed == N_PUPPETS - 1)
        return found

    monkeypatch.setattr(world, "vector", vector)
    # Changed software does not check what it sends, and writes negative numbers where none are.
    monkeypatch.setattr(VectorSpec, "validated", lambda self, vector: vector)
    monkeypatch.setattr("fedrec.protection.packing.gmpy2.pack", packed_without_checks)


def packed_without_checks(values: list[int], width: int) -> int:
    """Write negative numbers where none are, as changed software does."""
    return sum(value << (place * width) for place, value in enumerate(values))


def moved_unchecked(world: World, round_: FakeRound) -> float:
    """Return how far the row moves where nobody checks the sum."""
    before = world.shared[round_.base].tensors["item_embedding"][ROW, 0]
    total = sum(world.vector(n, round_) for n in range(N_PUPPETS))
    after = world.learner.apply("train", round_.number, world.shared[round_.base], total)
    return float(after.tensors["item_embedding"][ROW, 0] - before)


def codes(log: str) -> list[tuple[str, str, int]]:
    lines = [json.loads(line) for line in log.splitlines()]
    return [(line["event"], line["code"], line["round"]) for line in lines]


@pytest.mark.parametrize("protection", ["bfv", "paillier"])
def test_the_authority_opens_it_and_publishes_nothing(tmp_path, attack, protection, monkeypatch):
    """It goes on: a refusal says nothing about its key, since the sum has the right tags."""
    watch = put_watch(monkeypatch)
    world = AuthorityWorld(tmp_path, protection=protection, n_puppets=N_PUPPETS, **PLAN)
    spoilt(world, attack, monkeypatch)
    bad = world.honest_round(1)
    assert moved_unchecked(world, bad) == pytest.approx(attack.moves)
    good = world.honest_round(2)
    world.run_revealer(lambda: world.reveal(bad), lambda: world.reveal(good))
    assert codes(world.refusals()) == [("reveal_refused", "sum_out_of_bounds", 1)]
    for words in attack.said:
        assert words in world.refusals()
    assert watch.opened == [world.total(bad), world.total(good)]
    assert [statement.round for statement, _ in world.link.reveals] == [2]
    (declined,) = world.link.declined
    assert declined.refused == "the sum is out of bounds, and one of these clients caused it"
    state = OpenedSums(world.keys.revealer.folder / STATE_FOLDER, read_only=True).state
    assert (state.version, state.refused_sums) == (0, 0)


@pytest.mark.parametrize("kind", [World, AuthorityWorld])
def test_a_client_applies_no_such_sum_whoever_signed_it(tmp_path, attack, kind, monkeypatch):
    """Whoever opens may have other software, too; where each client decrypts it looks itself."""
    world = kind(tmp_path, n_puppets=N_PUPPETS, **PLAN)
    spoilt(world, attack, monkeypatch)
    world.play(1)
    world.link.script.append(lambda: None)
    with pytest.raises(SumOutOfBounds):
        world.app().run()
    assert codes(world.audit()) == [("published_round_refused", "sum_out_of_bounds", 1)]
    assert PrivateStore(world.state, read_only=True).state.version == 0
    assert world.link.reports == []


def test_under_masks_a_client_applies_no_such_sum(tmp_path, attack, monkeypatch):
    """The coordinator is to refuse it; one that does not is not believed."""
    world = MaskedWorld(tmp_path, n_puppets=N_PUPPETS, **PLAN)
    # Its one user is in the sum, too, and may touch the row.
    world.write_data(("alice",))
    spoilt(world, attack, monkeypatch)
    world.then(1)
    with pytest.raises(SumOutOfBounds):
        world.app().run()
    assert codes(world.audit()) == [("published_round_refused", "sum_out_of_bounds", 1)]
    assert PrivateStore(world.state, read_only=True).state.version == 0
