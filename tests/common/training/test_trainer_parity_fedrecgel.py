"""The trainer and FedRecGEL's plain twin agree: three passes by autograd and torch's own Adam."""

import numpy as np
import pytest
import torch
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_fedrecgel import Adam, Settings, State, fedrecgel_round

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, SEED, CHUNK, NEAR_A_KINK = 41, 7, 12, 3e-7
RADII = {
    "full": (0.02, 0.02),
    "without-shared": (0.0, 0.02),
    "without-private": (0.02, 0.0),
    "without-both": (0.0, 0.0),
}


@pytest.fixture(scope="module")
def users():
    """Of 4 to 14 training items: the last chunk has each size, and items come twice."""
    data = generate(n_users=11, n_items=N_ITEMS, n_clusters=2, interactions_per_user=16, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 16 >= place // 16), data.catalogue)


def learner_of(case, n_hidden=3, chunk=CHUNK):
    shared, private = RADII[case]
    return Learner(
        Plan.model_validate(
            {
                "federation": {"seed": SEED, "maximum_users": 64, "minimum_item_users": 1},
                "algorithm": {
                    "name": "fedrecgel", "dim": 4, "hidden_layers": n_hidden,
                    "batch_size": chunk, "learning_rate": 0.02,
                    "radius_shared": shared, "radius_private": private,
                },
                "update": {"structure": "dense"},
            }
        ),
        N_ITEMS,
        device="cpu",
    )  # fmt: skip


def settings_of(learner):
    own = learner.algorithm.settings
    return Settings(
        dim=own.dim,
        n_hidden=own.hidden_layers,
        chunk=own.batch_size,
        rate=own.learning_rate,
        user_rate=own.user_learning_rate,
        radius_shared=own.radius_shared,
        radius_private=own.radius_private,
    )


def plain_round(learner, users, state, round_id, near=0.0):
    return fedrecgel_round(
        state, users.user_keys().tolist(),
        [users.train_of(index).tolist() for index in range(len(users))], settings_of(learner),
        seed=SEED, round_id=round_id, near=near,
    )  # fmt: skip


def sent_names(learner):
    return [tensor.name for tensor in learner.layout.tensors if tensor.signed]


@pytest.mark.parametrize(("n_hidden", "chunk"), [(3, CHUNK), (1, 1000)])
@pytest.mark.parametrize("case", RADII)
def test_three_rounds_before_rounding(users, case, n_hidden, chunk):
    learner = learner_of(case, n_hidden, chunk)
    shared, private = begin(learner, users)
    names = sent_names(learner)
    state = State.new({name: shared.tensors[name] for name in names}, private["user_embedding"])
    for number, round_id in enumerate((4, 5, 6), start=1):
        expected = plain_round(learner, users, state, round_id)
        found = train_unrounded(learner, users, shared, private, round_id)
        assert found.change["users"] == [len(users)]
        assert found.loss == pytest.approx(expected.loss, rel=1e-12)
        shared, private, state = found.shared, found.private, expected.after
        for name in names:
            assert_near(found.change[name], expected.gradients[name], 1e-9, name)
            assert_near(shared.tensors[name], state.shared[name], 1e-9, name)
            assert_near(shared.tensors[f"{name}_mean"], state.moments[name].mean, 1e-9, name)
            assert_near(shared.tensors[f"{name}_square"], state.moments[name].square, 1e-9, name)
        vectors, own = torch.stack(state.vectors), state.own_moments
        assert_near(private["user_embedding"], vectors, 1e-9, "vectors")
        means, squares = (torch.stack([getattr(m, k) for m in own]) for k in ("mean", "square"))
        assert_near(private["user_embedding_mean"], means, 1e-9, "means")
        assert_near(private["user_embedding_square"], squares, 1e-9, "squares")
        for kept, name in ((0.9, "mean"), (0.999, "square")):
            weight = private[f"user_embedding_{name}_weight"]
            assert weight == pytest.approx(1.0 - kept**number, rel=1e-12)
            assert shared.tensors[f"{name}_power"] == pytest.approx(kept**number, rel=1e-12)


@pytest.mark.parametrize("case", RADII)
def test_three_rounds_on_the_grid(users, case):
    """In float32, with the default grid; each of the plain rounds starts where the trainer's does.

    Who comes too near a kink of the network in any pass takes no part.
    """
    learner = learner_of(case)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    names, age = sent_names(learner), np.zeros(len(users), dtype=int)
    steps = {tensor.name: tensor.step for tensor in learner.layout.tensors}
    for number, round_id in enumerate((4, 5, 6)):
        state = state_of(shared, private.tensors, names, number, age)
        expected = plain_round(learner, users, state, round_id, near=NEAR_A_KINK)
        assert expected.taking.sum() >= 6
        age += expected.taking
        part = learner.contribute("train", round_id, shared, users, private, expected.taking)
        assert part.n_clipped == 0
        changes = learner.layout.changes_of(part.vector)
        for name in names:
            assert_near(changes[name] * steps[name], expected.gradients[name], 1e-3, name)
        private, after = part.private, expected.after
        assert_near(private.tensors["user_embedding"], torch.stack(after.vectors), 1e-3, "vectors")
        shared = learner.apply("train", round_id, shared, part.vector)
        for name in names:
            assert_near(shared.tensors[name], after.shared[name], 1e-3, name)


def state_of(shared, private, names, n_rounds, age):
    """Return the twin's state at the trainer's values, as float32 has them."""

    def read(values):
        return torch.from_numpy(values.astype(np.float32).astype(np.float64))

    return State(
        shared={name: read(shared.tensors[name]) for name in names},
        moments={
            name: Adam(
                steps=n_rounds,
                mean=torch.from_numpy(shared.tensors[f"{name}_mean"].copy()),
                square=torch.from_numpy(shared.tensors[f"{name}_square"].copy()),
            )
            for name in names
        },
        vectors=list(read(private["user_embedding"])),
        own_moments=[
            Adam(steps=int(steps), mean=mean, square=square)
            for steps, mean, square in zip(
                age, read(private["user_embedding_mean"]), read(private["user_embedding_square"]),
                strict=True,
            )
        ],
    )  # fmt: skip
