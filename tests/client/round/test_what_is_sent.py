"""What a client sends, and the bounds of what it takes.

In the tests of bounds a client of four adds what no user can: the sum is refused after opening,
nothing is applied, and the round is audited.
"""

import json

import numpy as np
import pytest
from world.fake_authority import (
    BITS,
    PLAN,
    ROW,
    WIDTH,
    AuthorityWorld,
    denominator_negative,
    inflated_row,
    spoilt,
)
from world.fake_federation import World
from world.fake_link import put_watch
from world.fake_masks import MaskedWorld
from world.fake_parties import USERS

from fedrec.errors import SumOutOfBounds
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.wire.messages import MakeSnapshot
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_client.round.participation import selection_secret
from fedrec_client.state.private_store import PrivateStore

WINDOW = 8
"""Two float32 values in a row: chance finds such a match once in 2^64 positions."""


def windows(values):
    raw = np.ascontiguousarray(values).tobytes()
    return {raw[start : start + WINDOW] for start in range(0, len(raw) - WINDOW + 1, 4)}


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_no_private_byte_is_sent(tmp_path, protection):
    world = World(tmp_path, protection=protection, rounds={"user_fraction": 0.9})
    world.whole_round(1, "count")
    world.whole_round(2)
    world.whole_round(3)
    world.ask_to_train(4)
    world.link.script.append(lambda: MakeSnapshot(round=RoundId(3)))
    privates: list[PrivateState] = []

    def remember(name):
        for path in world.state.glob("private-*.bin"):
            privates.append(PrivateState.from_bytes(path.read_bytes()))

    world.link.before = remember
    world.app().run()
    sent = b"\x00".join(world.link.sent)
    assert len(world.link.uploads) == 4
    assert len(privates) > 4
    for user in USERS:
        assert user.encode() not in sent
        assert user.split("@")[0].encode() not in sent
    for private in privates:
        for values in private.tensors.values():
            assert not [piece for piece in windows(values) if piece in sent]
    secrets = [world.identity.agree(world.puppets[0].public.exchange_key)]
    with PrivateStore(world.state) as store:
        secrets += [selection_secret(store)]
    secrets += [world.membership().secrets.group_key]
    for secret in secrets:
        assert secret not in sent


def test_the_search_would_find_a_leak(tmp_path):
    world = World(tmp_path, protection="none")
    world.whole_round(1)
    world.app().run()
    store = PrivateStore(world.state, read_only=True)
    assert store.state.private is not None
    private = PrivateState.from_bytes(store.read(store.state.private))
    (values,) = private.tensors.values()
    assert any(piece in b"header" + values.tobytes() for piece in windows(values))


def test_every_update_has_one_size(tmp_path):
    sizes = set()
    for n, users in enumerate([USERS[:1], USERS, tuple(f"u{i}" for i in range(40))]):
        folder = tmp_path / str(n)
        folder.mkdir()
        world = World(folder)
        world.write_data(users)
        world.whole_round(1)
        world.app().run()
        sizes.add(len(world.link.uploads[0][1]))
    assert len(sizes) == 1


def test_a_coin_that_chose_no_client_uploads_zeros(tmp_path):
    world = World(tmp_path, protection="none", rounds={"user_fraction": 1e-9})
    world.whole_round(1)
    world.app().run()
    ((_, payload),) = world.link.uploads
    known = world.membership()
    added = world.protection.accumulator(world.context)
    added.add(payload)
    vector = known.vector_of("train", len(known.catalogue)).member.reveal(added.finish(), 1)
    assert not vector[: world.layout.metrics_slice.start].any()
    assert vector[world.layout.metrics_slice][0] == 0


def test_the_log_names_no_user(tmp_path, capsys):
    world = World(tmp_path)
    world.whole_round(1)
    world.link.script.append(lambda: world.reveal(world.rounds[1]))
    world.app().run()
    shown = capsys.readouterr()
    written = "".join(path.read_text() for path in world.state.glob("*.jsonl"))
    for text in (shown.out, shown.err, written, repr(world.events)):
        assert not [user for user in USERS if user.split("@")[0] in text]


def test_nothing_is_trained_before_rare_items_are_known(tmp_path):
    film = {"name": "films", "seed": 7, "minimum_item_users": 3}
    world = World(tmp_path, federation=film)
    for _ in range(3):
        world.ask_to_train(1)
    world.app().run()
    assert world.link.uploads == []
    assert codes(world.audit()) == [("task_refused", "task_refused", 1)], "once"
    world.ask_to_train(2, kind="count")
    world.app().run()
    assert len(world.link.uploads) == 1


def test_a_second_count_and_a_reused_number_are_refused_and_audited(tmp_path):
    world = World(tmp_path, federation={"name": "films", "seed": 7, "minimum_item_users": 3})
    world.whole_round(1, "count")
    world.ask_to_train(2, kind="count")
    world.ask_to_train(3)
    world.ask_to_train(3, kind="evaluate")
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [1, 3]
    found = [("task_refused", "task_refused", number) for number in (2, 3)]
    assert codes(world.audit()) == found
    assert "stale" not in world.event_names()


MOVED = 11_775
N_PUPPETS = 4


def users_over_cap(layout, vector, spoils):
    """All users that a federation may have, and those of the others beside them."""
    vector[layout.metrics_slice][METRIC_NAMES.index("participants")] = 16_384 if spoils else 1
    vector[layout.count_slice][ROW] = 1
    vector[ROW * WIDTH] = 1 << BITS


ATTACKS = {
    inflated_row: (
        MOVED,
        f"of item row {ROW} is {MOVED << BITS}, but the allowed range is -256 to 256",
    ),
    denominator_negative: (
        3.0,
        f"item_embedding of item row {ROW} is 768, but the allowed range is -256 to 256",
    ),
    users_over_cap: (1.0, "participants is 16387, but the allowed range is 0 to 16384"),
}
"""What the last of four members does to its vector, by how much the row moves without checks, and
what is said of the sum."""


@pytest.fixture(params=ATTACKS, ids=lambda attack: attack.__name__)
def attack(request):
    return request.param


def moved_unchecked(world, round_):
    """Return how far the row moves if the sum is not checked."""
    before = world.shared[round_.base].tensors["item_embedding"][ROW, 0]
    total = sum(world.vector(n, round_) for n in range(N_PUPPETS))
    after = world.learner.server.apply("train", round_.number, world.shared[round_.base], total)
    return float(after.tensors["item_embedding"][ROW, 0] - before)


def codes(log):
    lines = [json.loads(line) for line in log.splitlines()]
    return [(line["event"], line["code"], line["round"]) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["bfv", "paillier"])
def test_the_authority_opens_it_and_publishes_nothing(tmp_path, attack, protection, monkeypatch):
    """It goes on: a refusal says nothing about its key, since the sum has the right tags."""
    watch = put_watch(monkeypatch)
    world = AuthorityWorld(tmp_path, protection=protection, n_puppets=N_PUPPETS, **PLAN)
    spoilt(world, attack, monkeypatch, N_PUPPETS - 1, only=1)
    bad = world.honest_round(1)
    assert moved_unchecked(world, bad) == pytest.approx(ATTACKS[attack][0])
    good = world.honest_round(2)
    world.run_revealer(lambda: world.reveal(bad), lambda: world.reveal(good))
    assert codes(world.refusals()) == [("reveal_refused", "sum_out_of_bounds", 1)]
    assert ATTACKS[attack][1] in world.refusals()
    assert watch.opened == [world.total(bad), world.total(good)]
    assert [statement.round for statement, _ in world.link.reveals] == [2]
    (declined,) = world.link.declined
    assert declined.refused == "the sum is out of bounds, and one of these clients caused it"
    state = OpenedSums(world.keys.revealer.folder / STATE_FOLDER, read_only=True).state
    assert (state.version, state.refused_sums) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [World, AuthorityWorld])
def test_a_client_applies_no_such_sum_whoever_signed_it(tmp_path, attack, kind, monkeypatch):
    """Whoever opens may have other software, too; where each client decrypts it looks itself."""
    world = kind(tmp_path, n_puppets=N_PUPPETS, **PLAN)
    spoilt(world, attack, monkeypatch, N_PUPPETS - 1, only=1)
    world.play(1)
    world.link.script.append(lambda: None)
    with pytest.raises(SumOutOfBounds):
        world.app().run()
    assert codes(world.audit()) == [("published_round_refused", "sum_out_of_bounds", 1)]
    assert PrivateStore(world.state, read_only=True).state.version == 0
    assert world.link.reports == []


@pytest.mark.slow
def test_under_masks_a_client_applies_no_such_sum(tmp_path, attack, monkeypatch):
    """The coordinator is to refuse it; one that does not is not believed."""
    world = MaskedWorld(tmp_path, n_puppets=N_PUPPETS, **PLAN)
    # Its one user is in the sum, too, and may touch the row.
    world.write_data(("alice",))
    spoilt(world, attack, monkeypatch, N_PUPPETS - 1, only=1)
    world.then(1)
    with pytest.raises(SumOutOfBounds):
        world.app().run()
    assert codes(world.audit()) == [("published_round_refused", "sum_out_of_bounds", 1)]
    assert PrivateStore(world.state, read_only=True).state.version == 0
