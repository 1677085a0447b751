"""CentRAP: of one user it is FedRAP's visit; of several, one table moves by the pooled gradient."""

import numpy as np
import pytest
import torch
from reference.plain_fedrap import objective, visit

from fedrec.algorithms import FedRAP, FedRAPSettings
from fedrec.algorithms.declarations import Shapes
from fedrec.settings.schema import Settings
from fedrec.updates.update import UpdateSettings
from fedrec_lab.comparison.references.centralised import CentRAP, Pool, PooledModel

N_ITEMS, DIM = 7, 3


def algorithm_of(**changes):
    settings = FedRAPSettings.model_validate(
        {
            "dim": DIM, "learning_rate": 0.3, "item_rate": 3.0, "weight_decay": 0.02,
            "difference_weight": 0.2, "sparsity_weight": 0.3, "local_epochs": 3, "tolerance": 0.0,
        } | changes
    )  # fmt: skip
    shapes = Shapes(n_items=N_ITEMS, seed=7, update=UpdateSettings(), n_rounds=4)
    return FedRAP(settings, shapes)


def begun(n_users):
    """Return first values in float64: C, then everything of the users' own."""
    draw = torch.Generator().manual_seed(3)
    made = {
        "own_embedding": torch.randn((n_users, N_ITEMS, DIM), generator=draw),
        "user_embedding": torch.randn((n_users, DIM), generator=draw),
        "user_bias": torch.randn((n_users,), generator=draw),
    }
    shared = torch.randn((N_ITEMS, DIM), generator=draw).double()
    return shared, {name: values.double() for name, values in made.items()}


def pool_of(samples):
    """Return a pool of (user, item, label)."""
    user, item, label = zip(*samples, strict=True)
    return Pool(
        user=torch.tensor(user), item=torch.tensor(item), label=torch.tensor(label).double()
    )


ONE = [(0, 0, 1.0), (0, 2, 1.0), (0, 5, 0.0), (0, 5, 0.0), (0, 1, 0.0)]


@pytest.mark.parametrize("published", [0, 4])
@pytest.mark.parametrize("schedule", ["fixed", "frac"])
def test_a_single_user_s_rounds_are_fedrap_s(schedule, published, monkeypatch):
    monkeypatch.setattr("fedrec_lab.comparison.references.centralised._SMALLEST_SCALE", 0.9)
    algorithm = algorithm_of(schedule=schedule)
    shared, private = begun(1)
    model = PooledModel(algorithm, shared, private)
    loss = model.train(pool_of(ONE), published, torch.Generator().manual_seed(1))
    weight = 1.0 if schedule == "fixed" else 1 / (published + 2)
    expected, wanted, _ = visit(
        {"item_embedding": shared} | {name: values[0] for name, values in private.items()},
        [[[(item, label) for _, item, label in ONE]]] * 3,
        rate=0.3 * 0.97**published, item_rate=3.0 * 0.97**published, decay=0.02, factor=0.95,
        tolerance=0.0, tables="both", sparsity="l1", apart=0.2 * weight, sparse=0.3 * weight,
    )  # fmt: skip
    assert loss == pytest.approx(wanted, rel=1e-12)
    found = {name: values[0] for name, values in model.tensors.items() if name[:4] == "user"}
    found["item_embedding"] = model.tensors["item_embedding"]
    found["own_embedding"] = model.own_embedding[0]
    for name, values in expected.items():
        assert found[name].numpy() == pytest.approx(values.numpy(), rel=1e-10), name


def test_one_table_moves_by_the_mean_over_all_samples():
    """Both users' samples weigh alike, however many each has; own values move apart."""
    algorithm = algorithm_of(schedule="fixed", local_epochs=1)
    shared, private = begun(2)
    samples = [*ONE, (1, 2, 1.0), (1, 6, 0.0)]
    leaves = {name: values.clone().requires_grad_() for name, values in private.items()}
    table = shared.clone().requires_grad_()
    parts = []
    for user in (0, 1):
        own = [(item, label) for who, item, label in samples if who == user]
        values = {"item_embedding": table} | {name: v[user] for name, v in leaves.items()}
        rule = {"tables": "both", "sparsity": "l1", "apart": 0.2, "sparse": 0.3}
        parts.append(len(own) / 7 * objective(values, own, **rule))
    sum(parts).backward()
    model = PooledModel(algorithm, shared, private)
    model.train(pool_of(samples), 0, torch.Generator().manual_seed(1))
    moved = shared - 3.0 * (table.grad + 0.02 * shared)
    assert model.tensors["item_embedding"].numpy() == pytest.approx(moved.detach().numpy())
    for name, rate in (("own_embedding", 3.0), ("user_embedding", 0.3), ("user_bias", 0.3)):
        found = model.own_embedding if name == "own_embedding" else model.tensors[name]
        moved = private[name] - rate * (leaves[name].grad + 0.02 * private[name])
        assert found.numpy() == pytest.approx(moved.detach().numpy()), name


def test_scores_are_fedrap_s():
    algorithm, (shared, private) = algorithm_of(), begun(2)
    model = PooledModel(algorithm, shared, private)
    rows = private["own_embedding"] + shared
    expected = torch.einsum("uid,ud->ui", rows, private["user_embedding"])
    found = model.scores(np.array([0, 1]))
    assert found.numpy() == pytest.approx((expected + private["user_bias"][:, None]).numpy())


@pytest.mark.parametrize("where", ["grad", "upload"])
def test_nothing_is_hidden_where_nothing_is_sent(where):
    """The paper's noise is on what users send; the reference is FedRAP without it."""
    run = Settings.model_validate(
        {"algorithm": {"name": "fedrap", "noise_where": where, "dim": DIM}}
    )
    trained = CentRAP().settings(run).algorithm
    assert trained == FedRAPSettings(dim=DIM)
    shapes = Shapes(n_items=N_ITEMS, seed=7, update=UpdateSettings(), n_rounds=4)
    model = PooledModel(FedRAP(trained, shapes), *begun(1))
    assert np.isfinite(model.train(pool_of(ONE), 0, torch.Generator().manual_seed(1)))
