"""FedRecGEL: the worked steps of the specification, chunks, both Adams, and what is refused."""

import math

import numpy as np
import pytest
import torch
from conformance.hand_made import HandMade
from conformance.histories import unequal_users
from conformance.toys import Toy
from conformance.unrounded import begin, train_unrounded
from reference.plain_fedrecgel import Settings, chunks_of, logits_of
from world.plans import check_plan, plans

from fedrec.algorithms import (
    Adam,
    Constant,
    FedRecGELSettings,
    Gradient,
    Parameter,
    Phase,
    Shapes,
    SharedAdam,
    own_moments,
)
from fedrec.algorithms.fedrecgel import FedRecGEL, uphill
from fedrec.data import generate, leave_one_out
from fedrec.errors import SettingsError
from fedrec.model.state import SharedState
from fedrec.plan.algorithm import algorithm_of, algorithm_warnings
from fedrec.training.blocks import blocks_of, buckets_of
from fedrec.training.learner import Learner
from fedrec.training.samples import draw_samples
from fedrec.updates.update import UpdateSettings

N_ITEMS = 61


plan_of = plans(
    federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
    algorithm={"name": "fedrecgel", "dim": 4, "batch_size": 16},
    update={"structure": "dense"},
)


@pytest.fixture(scope="module")
def users():
    return unequal_users(N_ITEMS)


def states_of(plan, users):
    learner = Learner(plan, N_ITEMS, device="cpu")
    return learner, learner.server.initial_shared(), learner.local.initial_private(users)


# The specification's numbers.


class Product(Toy):
    """logit = u v; the shared v and the private u by FedRecGEL's optimisers."""

    radius = 0.02

    @property
    def parameters(self):
        user = Parameter("user_embedding", "own", (1,), Constant(1.0))
        return (
            Parameter("item_embedding", "rows", (1,), Constant(1.0)),
            user,
            *own_moments(user),
        )

    def phases(self, scalars):
        shared = Gradient(("item_embedding",), passes=uphill(self.radius))
        own = Adam({"user_embedding": 0.1}, kept=True, passes=uphill(self.radius))
        return (Phase(steps=((shared, own),), epochs=1),)


def product_of(n_items=2):
    shapes = Shapes(n_items=n_items, seed=1, update=UpdateSettings(structure="dense"), n_rounds=1)
    return Product(Toy.settings_type(), shapes)


def fresh(value):
    names = ("mean", "square", "mean_weight", "square_weight")
    return {"user_embedding": np.array([[value]])} | {
        f"user_embedding_{name}": np.zeros((1, 1) if "weight" not in name else 1) for name in names
    }


def test_a_worked_step(monkeypatch):
    """u = v = 1, y = 1: g = sigma(1) - 1 = -.268941 for both, eps = -.02 for both.

    Both gradients are (sigma(.98) - 1) 1 = -.272892; Adam's first step has the length of its rate.
    """
    algorithm, start = product_of(), {"item_embedding": np.array([[1.0], [5.0]])}
    result, sums = HandMade(samples=[[(0, 1)]], n_items=2).train(
        monkeypatch, algorithm, start, fresh(1.0)
    )
    sent = sums.rows["item_embedding"][:-1, 0]
    assert sent.tolist() == [pytest.approx(-0.272892, abs=5e-7), 0.0]
    assert float(sent[0]) == pytest.approx(1 / (1 + math.exp(-0.98)) - 1, abs=1e-12)
    own = {name: float(values.flatten()[0]) for name, values in result.private.items()}
    assert own["user_embedding"] == pytest.approx(1.1, abs=1e-8)
    assert own["user_embedding_mean"] == pytest.approx(-0.0272892, abs=5e-8)
    assert own["user_embedding_square"] == pytest.approx(0.001 * 0.272892**2, rel=1e-5)
    assert own["user_embedding_mean_weight"] == pytest.approx(0.1, abs=1e-15)
    assert own["user_embedding_square_weight"] == pytest.approx(0.001, abs=1e-15)
    server = SharedAdam(0.001, algorithm.parameters[:1])
    shared = SharedState(start | moments_of(server, 2))
    after = server.step(shared, {"item_embedding": sent.numpy()[:, None]}).tensors
    assert after["item_embedding"][0, 0] == pytest.approx(1.001, abs=1e-9)
    assert after["item_embedding"][1, 0] == 5.0
    assert (after["mean_power"], after["square_power"]) == (0.9, 0.999)


def test_no_gradient_leads_nowhere(monkeypatch):
    """u = v = 0: both gradients are 0, and so are the steps uphill; nothing is divided by zero."""
    start = {"item_embedding": np.zeros((2, 1))}
    result, sums = HandMade(samples=[[(0, 1)]], n_items=2).train(
        monkeypatch, product_of(), start, fresh(0.0)
    )
    assert not sums.rows["item_embedding"].any()
    assert not result.private["user_embedding"].any()
    assert float(result.loss) == pytest.approx(math.log(2), abs=1e-15)


def moments_of(server, n_items):
    return {
        entry.name: np.full(entry.whole_shape(n_items=n_items, n_users=0), entry.initial.value)
        for entry in server.parameters
    }


# Chunks.


def test_130_samples_are_two_chunks_and_their_means_are_added():
    """26 positives: the last 2 samples are negatives of the last positive, and weigh 1/2 each."""
    data = generate(n_users=4, n_items=200, n_clusters=1, interactions_per_user=28, seed=1)
    users = leave_one_out(data.interactions, data.catalogue)
    plan = plan_of(algorithm={"batch_size": 128})
    learner = Learner(plan, 200, device="cpu")
    cohort = learner.local.cohort(learner.server.initial_shared(), users)
    chunk = cohort.chunk_of(np.arange(4), torch.device("cpu"))
    samples = draw_samples(chunk, seed=7, round_id=5, negatives_per_positive=4)
    settings = Settings(
        dim=4, n_hidden=3, chunk=128, rate=0, user_rate=0, radius_shared=0, radius_private=0
    )
    seen = 0
    for size, members in buckets_of(samples, batch_size=128, epochs=1, gathers=False, together=5):
        for block in blocks_of(
            chunk, samples, members, size, seed=7, round_id=5, dtype=torch.float64
        ):
            assert block.index is None and block.weight.shape[:2] == (1, 1)
            assert not block.weight[..., block.n_users :, :].any()
            assert not block.share[:, block.n_users :].any()
            for place in range(block.n_users):
                index, seen = int(block.users[place]), seen + 1
                key = int(users.user_keys()[index])
                first, last = chunks_of(7, 5, key, users.train_of(index).tolist(), 200, settings)
                assert (len(first), len(last)) == (128, 2)
                assert not any(label for _, label in last)
                wanted = np.zeros(200)
                for item, _ in first:
                    wanted[item] += 1 / 128
                for item, _ in last:
                    wanted[item] += 1 / 2
                found = np.zeros(201)
                np.add.at(found, block.item[place].numpy(), block.weight[0, 0, place].numpy())
                assert found[:-1] == pytest.approx(wanted, abs=1e-15)
                assert float(block.weight[0, 0, place].sum()) == pytest.approx(2.0, abs=1e-12)
                # What is reported is the mean over both.
                assert float(block.share[0, place]) == 0.5
    assert seen == 4


# Gradients as they are.


def test_a_small_gradient_of_large_values_keeps_its_bits(monkeypatch):
    """Beside v = 4096 float32 has steps of 2^-11: a change by the gradient would be none at all."""
    algorithm = product_of()
    algorithm.radius = 0.0
    u, v = 2.0**-14, 4096.0
    made = HandMade(samples=[[(0, 0)]], n_items=2)
    _, sums = made.train(
        monkeypatch, algorithm, {"item_embedding": np.array([[v], [1.0]])}, fresh(u)
    )
    wanted = u / (1 + math.exp(-u * v))
    assert np.float32(v) - np.float32(wanted) == np.float32(v)
    assert float(sums.rows["item_embedding"][0, 0]) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("radius", [0.0, 0.02])
def test_the_rounded_sum_is_near_the_sum_in_float64(users, radius):
    """Within 1e-3 of the norm of each tensor, from the start on, where gradients are smallest."""
    plan = plan_of(algorithm={"radius_shared": radius, "radius_private": radius})
    learner, shared, private = states_of(plan, users)
    _, doubled = begin(learner, users)
    exact = train_unrounded(learner, users, shared, doubled, 2)
    part = learner.contribute("train", 2, shared, users, private)
    assert part.n_clipped == 0
    changes = learner.server.layout.changes_of(part.vector)
    for tensor in learner.server.layout.tensors:
        wanted = exact.change[tensor.name]
        apart = np.linalg.norm(changes[tensor.name] * tensor.step - wanted)
        assert apart <= 1e-3 * np.linalg.norm(wanted), tensor.name


# Radius zero.


@pytest.mark.slow
@pytest.mark.parametrize("half", ["radius_shared", "radius_private"])
def test_a_radius_that_moves_nothing_is_plain_adam_bit_by_bit(users, half):
    """Through the second pass with a step that float32 does not know, and without that pass."""
    found = []
    for radius in (0.0, 1e-60):
        plan = plan_of(algorithm={"radius_shared": 0.0, "radius_private": 0.0, half: radius})
        learner, shared, private = states_of(plan, users)
        for round_id in (2, 3, 4):
            part = learner.contribute("train", round_id, shared, users, private)
            shared = learner.server.apply("train", round_id, shared, part.vector)
            private = part.private
        found.append((part.vector, private.tensors, shared.canonical_bytes()))
    (vector, own, version), (other, others, same) = found
    assert np.array_equal(vector, other) and version == same
    assert all(np.array_equal(values, others[name]) for name, values in own.items())


@pytest.mark.slow
def test_each_radius_touches_its_own_half_alone(users):
    """The shared gradient does not know where a user's own is taken, and the other way round."""
    parts = {}
    for radii in ((0.0, 0.0), (0.0, 0.5), (0.5, 0.0), (0.5, 0.5)):
        plan = plan_of(algorithm={"radius_shared": radii[0], "radius_private": radii[1]})
        learner, shared, private = states_of(plan, users)
        part = learner.contribute("train", 2, shared, users, private)
        change = part.vector[learner.server.layout.change_slice]
        parts[radii] = change, part.private.tensors["user_embedding_mean"]
    assert np.array_equal(parts[0.0, 0.0][0], parts[0.0, 0.5][0])
    assert np.array_equal(parts[0.5, 0.0][0], parts[0.5, 0.5][0])
    assert not np.array_equal(parts[0.0, 0.0][0], parts[0.5, 0.0][0])
    assert np.array_equal(parts[0.0, 0.0][1], parts[0.5, 0.0][1])
    assert np.array_equal(parts[0.0, 0.5][1], parts[0.5, 0.5][1])
    assert not np.array_equal(parts[0.0, 0.0][1], parts[0.0, 0.5][1])


# Moments.


@pytest.mark.slow
def test_the_servers_adam_is_torchs_over_the_whole_table():
    """Twenty steps, rows without a gradient among them: they go on by their moments."""
    rng = np.random.default_rng(0)
    entry = Parameter("table", "rows", (3,))
    server, value = SharedAdam(0.01, [entry]), rng.normal(size=(5, 3))
    shared = SharedState({"table": value} | moments_of(server, 5))
    moving = torch.from_numpy(value.copy()).requires_grad_()
    optimiser = torch.optim.Adam([moving], lr=0.01)
    for step in range(20):
        gradient = rng.normal(size=(5, 3)) * (rng.random((5, 1)) < 0.5)
        before = shared.tensors["table"]
        shared = server.step(shared, {"table": gradient})
        moving.grad = torch.from_numpy(gradient)
        optimiser.step()
        assert shared.tensors["table"] == pytest.approx(moving.detach().numpy(), rel=1e-12)
        if step > 8:
            assert (shared.tensors["table"] != before).all()


@pytest.mark.slow
def test_moments_are_neither_sent_nor_exported_nor_trained(users):
    learner, shared, private = states_of(plan_of(), users)
    algorithm = learner.server.algorithm
    moments = {name for name in shared.tensors if name.endswith(("_mean", "_square", "_power"))}
    assert len(moments) == 2 * (len(shared.tensors) - len(moments)) + 2
    assert not moments & set(algorithm.recommending)
    assert not moments & {tensor.name for tensor in algorithm.tensors}
    assert not moments & set(algorithm.scoring)
    assert not moments & set(algorithm.serving(shared, np.arange(N_ITEMS)))
    active = np.arange(N_ITEMS)
    assert not moments & set(
        algorithm.derived.start(shared, active, 2, learner.local.device).shared
    )
    # And what they are has no say in what users do.
    part = learner.contribute("train", 2, shared, users, private)
    spoilt = shared.with_tensors(
        **{name: np.full_like(shared.tensors[name], 3.0) for name in moments}
    )
    assert np.array_equal(
        learner.contribute("train", 2, spoilt, users, private).vector, part.vector
    )


def test_who_takes_no_part_keeps_moments_and_counts_its_own_rounds(users):
    learner, shared, private = states_of(plan_of(), users)
    taking = np.arange(23) % 2 == 0
    part = learner.contribute("train", 2, shared, users, private, taking)
    part = learner.contribute("train", 3, shared, users, part.private, np.arange(23) < 4)
    rounds = taking.astype(int) + (np.arange(23) < 4)
    weight = part.private.tensors["user_embedding_mean_weight"]
    assert weight == pytest.approx(1.0 - 0.9**rounds, rel=1e-6)
    weight = part.private.tensors["user_embedding_square_weight"]
    assert weight == pytest.approx(1.0 - 0.999**rounds, rel=1e-6)
    for name, values in part.private.tensors.items():
        assert np.array_equal(values[rounds == 0], private.tensors[name][rounds == 0])


# The model.


def test_shapes_and_first_values_are_the_published_ones():
    plan = plan_of(algorithm={"dim": 32, "batch_size": 128})
    algorithm = algorithm_of(plan, 500)
    assert sum(t.size for t in algorithm.tensors if t.signed) == 160 * 500 + 43297
    shared = algorithm.derived.initial_shared().tensors
    shapes = [(128, 256), (64, 128), (32, 64), (1, 64)]
    assert [shared[f"weight_{layer}"].shape for layer in (1, 2, 3, 4)] == shapes
    assert not any(shared[f"bias_{layer}"].any() for layer in (1, 2, 3, 4))
    assert shared["item_embedding"].shape == (500, 160)
    assert shared["item_embedding"].std() == pytest.approx(0.01, rel=0.02)
    widths = [math.sqrt(6 / (a + b)) for a, b in shapes[:3]] + [math.sqrt(3 / 64)]
    for layer, width in enumerate(widths, start=1):
        largest = np.abs(shared[f"weight_{layer}"]).max()
        assert 0.93 * width < largest <= width
    own = algorithm.derived.initial_private(np.arange(300)).tensors
    assert own["user_embedding"].shape == (300, 160)
    assert own["user_embedding"].std() == pytest.approx(0.01, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("n_hidden", [1, 3])
def test_scores_are_those_of_the_network(users, n_hidden):
    plan = plan_of(algorithm={"hidden_layers": n_hidden, "learning_rate": 0.05})
    learner, shared, private = states_of(plan, users)
    for round_id in (2, 3, 4):
        part = learner.contribute("train", round_id, shared, users, private)
        shared = learner.server.apply("train", round_id, shared, part.vector)
        private = part.private
    net = {name: torch.from_numpy(value) for name, value in shared.tensors.items()}
    settings = Settings(
        dim=4, n_hidden=n_hidden, chunk=0, rate=0, user_rate=0, radius_shared=0, radius_private=0
    )
    vectors = private.tensors["user_embedding"]
    wanted = np.stack(
        [
            logits_of(torch.from_numpy(p).double(), net["item_embedding"], net, settings).numpy()
            for p in vectors
        ]
    )
    assert wanted.std() > 0.01
    ((_, scores),) = learner.local.score_blocks(shared, users, private)
    assert scores.numpy() == pytest.approx(wanted, abs=1e-5)
    serving = learner.server.algorithm.serving(shared, np.arange(N_ITEMS))
    assert learner.server.algorithm.preferences(
        serving, {"user_embedding": vectors[3]}
    ) == pytest.approx(wanted[3], abs=1e-5)


# What is refused.


def test_it_has_no_low_rank_form_and_folds_no_user_in(users):
    (sentence,) = check_plan(plan_of(update={"structure": "colr"}))
    assert "rotated coordinates" in sentence and 'update.structure = "dense"' in sentence
    learner, shared, _ = states_of(plan_of(), users)
    with pytest.raises(SettingsError, match="fedrecgel has no user vector"):
        learner.server.algorithm.fold_in(shared.tensors["item_embedding"], users.train_of(0))


def test_settings_without_a_meaning_are_refused():
    (sentence,) = check_plan(plan_of(update={"clip": 2.0}))
    assert "update.clip" in sentence
    noise = {"mechanism": "gaussian", "epsilon": 4.0, "clip": 1.0, "expected_users": 20}
    (sentence,) = check_plan(plan_of(privacy=noise, protection={"name": "bfv"}))
    assert "different grids" in sentence
    with pytest.raises(ValueError, match="local_epochs"):
        plan_of(algorithm={"local_epochs": 2})


def test_a_long_step_uphill_is_warned_of():
    assert algorithm_warnings(plan_of()) == []
    (found,) = algorithm_warnings(plan_of(algorithm={"radius_shared": 3.0}))
    assert "algorithm.radius_shared is 3" in found


def test_the_papers_ablations_are_settings():
    assert FedRecGELSettings().radius_shared == FedRecGELSettings().radius_private == 0.02
    shapes = Shapes(n_items=3, seed=1, update=UpdateSettings(structure="dense"), n_rounds=1)
    plain = FedRecGEL(FedRecGELSettings(radius_shared=0, radius_private=0), shapes)
    assert not any(rule.passes for phase in plain.phases({}) for rule in phase.optimisers)
