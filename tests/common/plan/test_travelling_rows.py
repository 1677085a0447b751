"""Which rows travel, and that nothing is lost or added on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance.histories import counted
from world.plans import users_of

from fedrec.errors import SettingsError
from fedrec.model.state import SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import METRICS_SLICE, Layout, protection_of, vector_spec
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ROW_STEP, ActiveRows, padded_rows
from fedrec.protection import PROTECTIONS
from fedrec.training.learner import Learner

N_ITEMS = 300
LEAST = 4


def plan_of(name: str = "fedals", **sections: dict[str, Any]) -> Plan:
    values: dict[str, dict[str, Any]] = {
        "federation": {"maximum_users": 256, "minimum_item_users": LEAST},
        "algorithm": {"name": name},
        "update": {"structure": "dense"},
        "rounds": {"total": 3},
    }
    if name != "ease":
        values["algorithm"]["dim"] = 4
    for section, change in sections.items():
        values[section] = values.get(section, {}) | change
    return Plan.model_validate(values)


@pytest.fixture(scope="module")
def users():
    return users_of(80, N_ITEMS, clusters=4, each=9, seed=5)


def assert_same(one: SharedState, two: SharedState) -> None:
    """Check that two versions have the same bits for every item of the catalogue."""
    assert one.holders is not None and two.holders is not None
    assert np.array_equal(one.holders, two.holders)
    assert one.tensors.keys() == two.tensors.keys()
    assert all(np.array_equal(values, two.tensors[name]) for name, values in one.tensors.items())


def test_rows_are_padded_to_a_multiple_of_256():
    assert [padded_rows(n) for n in (0, 1, 255, 256, 257, 4400)] == [0, 256, 256, 256, 512, 4608]
    assert ROW_STEP == 256


def test_rows_of_enough_holders_come_in_the_catalogues_order_and_zeros_behind_them():
    rows = ActiveRows.counted(np.array([5, 1, 9, 4, 0]), 4)
    assert rows.index.tolist() == [0, 2, 3]
    assert rows.n_rows == 256
    table = np.arange(10).reshape(5, 2) + 1
    sent = rows.padded(table[rows.index])
    assert sent.shape == (256, 2)
    assert sent[:3].tolist() == [[1, 2], [5, 6], [7, 8]]
    assert not sent[3:].any()
    back = rows.scatter(sent)
    assert back.tolist() == [[1, 2], [0, 0], [5, 6], [7, 8], [0, 0]]


def test_the_list_is_named_by_the_items_in_it_and_by_nothing_else():
    one = ActiveRows.counted(np.array([5, 1, 9]), 4)
    assert one.content() == ActiveRows.counted(np.array([4, 0, 4]), 4).content()
    others = (np.array([5, 5, 9]), np.array([1, 5, 9]), np.array([5, 1, 9, 0]))
    assert one.content() not in {ActiveRows.counted(held, 4).content() for held in others}


def test_all_rows_travel_before_the_count_and_where_noise_covers_rare_items():
    noisy = plan_of(
        "fedmf", privacy={"mechanism": "gaussian"}, rounds={"total": 3, "minimum_clients": 3}
    )
    holders = np.array([5, 0, 9])
    for rows in (ActiveRows.of(plan_of(), 3, None), ActiveRows.of(noisy, 3, holders)):
        assert rows.index.tolist() == [0, 1, 2]
        assert rows.n_rows == 3
        table = np.arange(3)
        assert rows.padded(table) is table
        assert rows.scatter(table) is table


@pytest.mark.parametrize("name", ["fedals", "fedmf", "fedncf", "fedrap", "pfedclr", "pfedrec"])
def test_a_vector_scattered_back_is_that_over_the_whole_catalogue(name, users):
    """The same training, by a learner whose rows all travel though the same ones are active."""
    learner = Learner(plan_of(name), N_ITEMS, device="cpu")
    shared, private = counted(learner, users)
    rows = learner.server.travelling.rows("train", shared)
    assert shared.holders is not None
    assert 0 < len(rows.index) < 256 < N_ITEMS
    assert rows.index.tolist() == [i for i, held in enumerate(shared.holders) if held >= LEAST]
    part = learner.contribute("train", 2, shared, users, private)
    whole = Layout.of(learner.server.plan, N_ITEMS)
    sums = learner.server.travelling.unpack("train", shared, part.vector)
    full = whole.pack(sums.changes, sums.counts, sums.metrics)

    # By hand: where each value of the full vector stands in the one that travelled.
    expected = np.zeros(whole.length, dtype=np.int64)
    layout = Layout.of(learner.server.plan, 256)
    assert part.vector.shape == (layout.length,)
    for tensor, (small, large) in zip(
        whole.tensors, zip(_starts(layout), _starts(whole), strict=True), strict=True
    ):
        width = tensor.size // N_ITEMS if tensor.per_item else 0
        for place, item in enumerate(rows.index.tolist() if tensor.per_item else []):
            sent = part.vector[small + place * width : small + (place + 1) * width]
            expected[large + item * width : large + (item + 1) * width] = sent
        if tensor.per_item:
            behind = part.vector[small + len(rows.index) * width : small + 256 * width]
            assert not behind.any()
        else:
            expected[large : large + tensor.size] = part.vector[small : small + tensor.size]
    expected[whole.count_slice.start + rows.index] = part.vector[layout.count_slice][
        : len(rows.index)
    ]
    assert not part.vector[layout.count_slice][len(rows.index) :].any()
    expected[METRICS_SLICE] = part.vector[METRICS_SLICE]
    assert np.array_equal(full, expected)
    assert sums.changes[whole.tensors[0].name].any()


def _starts(layout: Layout) -> list[int]:
    sizes = [tensor.size for tensor in layout.tensors]
    return [sum(sizes[:place]) for place in range(len(sizes))]


@pytest.mark.parametrize("name", ["fedals", "fedmf", "fedncf", "fedrap", "pfedclr", "pfedrec"])
def test_the_next_version_follows_from_the_sums_over_the_whole_catalogue(name, users):
    learner = Learner(plan_of(name), N_ITEMS, device="cpu")
    shared, private = counted(learner, users)
    part = learner.contribute("train", 2, shared, users, private)
    after = learner.server.apply("train", 2, shared, part.vector)
    sums = learner.server.travelling.unpack("train", shared, part.vector)
    steps = {tensor.name: tensor.step for tensor in learner.server.layout.tensors}
    change = {key: values.astype(np.float64) * steps[key] for key, values in sums.changes.items()}
    whole = SharedState(shared.tensors, shared.holders)
    counts = np.where(shared.holders >= LEAST, shared.holders, 0)
    counts = sums.counts if learner.server.algorithm.derived.counts_rows else counts
    expected = algorithm_of(learner.server.plan, N_ITEMS).apply(whole, change, counts, 2)
    assert expected.rest is None and after.rest is not None
    assert_same(after, expected)


def test_a_later_count_keeps_rows_and_starts_new_ones_from_the_seed(users):
    """What is kept belongs to items, so that another list of active ones moves nothing."""
    learner = Learner(plan_of(), N_ITEMS, device="cpu")
    first, private = counted(learner, users)
    trained = learner.server.apply(
        "train", 2, first, learner.contribute("train", 2, first, users, private).vector
    )
    some = users.select(np.arange(60))
    holders = np.bincount(some.train_items, minlength=N_ITEMS)
    holders[:5] = LEAST
    later = trained.with_holders(holders)
    before, now = (learner.server.travelling.rows("train", one).index for one in (trained, later))
    lost, new = np.setdiff1d(before, now), np.setdiff1d(now, before)
    kept = np.intersect1d(before, now)
    assert len(lost) and len(new) and len(kept)
    again = learner.server.apply(
        "train", 3, later, learner.contribute("train", 3, later, users, private).vector
    )
    seed, old, last = (
        state.tensors["item_embedding"]
        for state in (learner.server.initial_shared(), trained, again)
    )
    assert np.array_equal(old[new], seed[new])
    assert np.array_equal(last[lost], old[lost])
    assert (last[kept] != old[kept]).any()
    held = np.unique(users.train_items)
    assert (last[np.intersect1d(new, held)] != seed[np.intersect1d(new, held)]).any(1).all()


def test_without_an_active_item_nothing_is_trained(users):
    learner = Learner(plan_of(federation={"minimum_item_users": 81}), N_ITEMS, device="cpu")
    shared, _ = counted(learner, users)
    with pytest.raises(SettingsError, match="no item is held by 81 users") as caught:
        learner.server.travelling.check(shared)
    assert "federation.minimum_item_users" in str(caught.value)


def test_more_active_items_than_ease_can_take_are_refused_after_the_count():
    plan = plan_of("ease", federation={"minimum_item_users": 1}, rounds={"total": 1000})
    learner = Learner(plan, 17_632, device="cpu")
    shared = learner.server.initial_shared()
    few, many = np.zeros(17_632, dtype=np.int64), np.ones(17_632, dtype=np.int64)
    few[:1530] = 1
    learner.server.travelling.check(shared.with_holders(few))
    # 1,530 items travel as 1,536 rows; their pairs in a thousand parts.
    layout = learner.server.travelling.layout("train", shared.with_holders(few))
    assert layout.change_slice.stop == -(-1536 * 1535 // 2 // 1000)
    with pytest.raises(SettingsError, match="17664 rows travel") as caught:
        learner.server.travelling.check(shared.with_holders(many))
    assert "federation.minimum_item_users" in caught.value.remedy


@pytest.mark.parametrize("protection", ["none", "bfv", "ckks", "paillier", "masks"])
@pytest.mark.parametrize("name", ["fedals", "fedmf", "ease"])
def test_every_rounds_vector_fits_the_one_that_keys_are_planned_for(protection, name):
    plan = plan_of(name, protection={"name": protection})
    largest = vector_spec(plan, 1000)
    planned = protection_of(plan, 1000)
    for layout in (
        Layout.counting(plan, 1000),
        Layout.of(plan, 256),
        Layout.of(plan, 768),
        Layout.of(plan, 1024),
    ):
        found = planned.over(layout.vector_spec)
        assert found.spec.length == layout.length <= largest.length
        assert found.chosen.message_bytes <= planned.chosen.message_bytes
        same = ("key_bits", "plain_modulus", "scale_bits", "coeff_mod_bit_sizes", "limb_bits")
        for field in same if protection != "masks" else ():
            assert getattr(found.chosen, field) == getattr(planned.chosen, field)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protection", "preset"),
    [
        ("none", "default"),
        ("bfv", "default"),
        ("ckks", "lean"),
        ("paillier", "packed-2048"),
    ],
)
def test_one_key_serves_both_lengths_and_messages_are_told_apart(protection, preset):
    if preset not in PROTECTIONS[protection].presets:
        preset = PROTECTIONS[protection].presets[0]
    plan = plan_of(protection={"name": protection, "preset": preset})
    planned = protection_of(plan, 300)
    context, secret = planned.generate()
    with secret:
        whole = planned.member(context, secret, tag_key=bytes(32))
    found = {}
    for kind, layout in (
        ("count", Layout.counting(plan, 300)),
        ("train", Layout.of(plan, 256)),
    ):
        over = planned.over(layout.vector_spec)
        member = whole.over(over)
        vectors = [
            np.random.default_rng(number).integers(0, 3, layout.length).astype(np.int64)
            for number in range(3)
        ]
        total = over.accumulator(context)
        for number, vector in enumerate(vectors):
            total.add(member.protect(vector, bytes([number])))
        revealed = member.reveal(total.finish(), 3)
        assert np.array_equal(revealed, np.sum(vectors, axis=0))
        found[kind] = (over, member.protect(vectors[0], b"again"))
    for kind, other in (("count", "train"), ("train", "count")):
        with pytest.raises(Exception, match="bytes"):
            found[kind][0].accumulator(context).add(found[other][1])


def test_a_vector_that_keys_were_not_planned_for_is_refused():
    plan = plan_of(protection={"name": "bfv"})
    planned = protection_of(plan, 300)
    with pytest.raises(SettingsError, match=r"'pull' has 3072 values.*'counts' has 768"):
        planned.over(Layout.of(plan, 768).vector_spec)
