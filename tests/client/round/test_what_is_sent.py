"""Captures everything that leaves a client, and looks for what must not."""

import numpy as np
import pytest
from client.support.fake_federation import World
from client.support.fake_parties import USERS

from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.wire.messages import MakeSnapshot
from fedrec_client.round.participation import selection_secret
from fedrec_client.state.private_store import PrivateStore

WINDOW = 8
"""Two float32 values in a row: chance finds such a match once in 2^64 positions."""


def windows(values: np.ndarray) -> set[bytes]:  # type: ignore[type-arg]
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

    def remember(name: str) -> None:
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


def test_a_coin_that_chose_nobody_uploads_zeros(tmp_path):
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
    world.ask_to_train(1)
    world.app().run()
    assert world.link.uploads == []
    world.ask_to_train(2, kind="count")
    world.app().run()
    assert len(world.link.uploads) == 1
