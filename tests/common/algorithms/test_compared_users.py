"""CoFedRec, pFedGraph and PerFedRec: the worked numbers of the specifications, and odd cohorts."""

import json
import math

import numpy as np
import pytest
import torch
from conformance.unrounded import assert_near
from threadpoolctl import threadpool_limits
from world.plans import check_plan, plans

from fedrec.algorithms import ALGORITHMS, UserUpdates, individual
from fedrec.algorithms.batch import Batch, Values, supervised_contrast
from fedrec.algorithms.cofedrec import group
from fedrec.algorithms.declarations import UpdateTensor
from fedrec.algorithms.individual import clusters_of
from fedrec.algorithms.perfedrec import convolved
from fedrec.algorithms.pfedgraph import mixture_weights, on_simplex
from fedrec.errors import ProtocolError
from fedrec.model.state import SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.training.personalising import Senders, parts_of_publication, personalise, values_of
from fedrec.training.server_half import ServerHalf

plan_of = plans(
    federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
    protection={"name": "none"},
    update={"structure": "dense"},
)
NAMES = ("cofedrec", "pfedgraph", "perfedrec")


def personalised(name, tables, vectors=None, samples=None, **settings):
    """Return what users with these tables, (n_users, n_items, dim), get, by parameter."""
    n_users, n_items, dim = tables.shape
    plan = plan_of(algorithm={"name": name, "dim": dim, **settings})
    algorithm = algorithm_of(plan, n_items)
    updates = UserUpdates(
        SharedState({"item_embedding": np.zeros(tables.shape[1:])}),
        active=np.arange(n_items), user_keys=np.arange(n_users), number=2,
        samples=np.ones(n_users, int) if samples is None else np.array(samples),
        read=lambda name, users: tables[users],
        shown=lambda name: np.zeros((n_users, dim)) if vectors is None else vectors,
    )  # fmt: skip
    found, got = algorithm.personalise(updates), {}
    for own, mixture in found.own.items():
        made = updates.mixed(mixture.of, mixture.weights)
        table_of = np.arange(n_users) if mixture.table_of is None else mixture.table_of
        got[own] = [made[k] if k >= 0 else tables[u] for u, k in enumerate(table_of)]
    return {own: np.array(each) for own, each in got.items()}, found.shared


def test_products_have_the_same_bits_by_any_number_of_threads(monkeypatch):
    """In several pieces and blocks. They are those of float64, too."""
    tables = np.random.default_rng(3).standard_normal((300, 9000, 1))
    weights = np.random.default_rng(4).random((7, 300))
    monkeypatch.setattr(individual, "BLOCK_BYTES", 4 * 9000 * 200)

    def found(threads, dtype):
        updates = UserUpdates(
            SharedState({"item_embedding": np.zeros((9000, 1))}),
            active=np.arange(9000), user_keys=np.arange(300), samples=np.ones(300, int), number=2,
            read=lambda name, users: tables[users].astype(dtype), shown=lambda name: tables,
            threads=threads,
        )  # fmt: skip
        with threadpool_limits(1, user_api="blas"):
            return (
                updates.products("item_embedding", np.ones((9000, 1))),
                updates.mixed("item_embedding", weights)[:, :, 0],
            )

    wanted = (tables[:, :, 0] - 1.0) @ (tables[:, :, 0] - 1.0).T, weights @ tables[:, :, 0]
    one, three = found(1, np.float32), found(3, np.float32)
    for own, same, precise, exact in zip(one, three, found(3, np.float64), wanted, strict=True):
        assert np.array_equal(own, same)
        assert_near(precise, exact, 1e-9)
        assert_near(own, exact, 1e-5)


def test_the_elbow_of_the_specification():
    """Distances 0, .508, 1.218, .508, 0 from the line: three members."""
    assert group(np.array([10.0, 9.0, 8.5, 2.0, 1.0]), 0).tolist() == [0, 1, 2]
    assert group(np.array([1.0, 8.5, 10.0, 2.0, 9.0]), 2).tolist() == [2, 4, 1]


def test_an_elbow_of_no_other_user_is_the_user_alone():
    assert group(np.array([5.0]), 0).tolist() == [0]
    assert group(np.array([5.0, 5.0, 5.0]), 1).tolist() == [1]
    assert group(np.array([3.0, 1.0]), 0).tolist() == [0]


def test_a_group_gets_its_mean_and_the_others_keep_theirs():
    tables = np.random.default_rng(1).normal(size=(6, 8, 2))
    own, shared = personalised("cofedrec", tables, clusters=2)
    (found,) = own.values()
    moved = [u for u in range(6) if not np.array_equal(found[u], tables[u])]
    for user in moved:
        assert_near(found[user], tables[moved].mean(0), 1e-12)
    every, _ = personalised("cofedrec", tables, clusters=2, others="global")
    (found,) = every.values()
    for user in set(range(6)) - set(moved):
        assert_near(found[user], tables.mean(0), 1e-12)
    assert set(shared["item_cluster"]) == {0.0, 1.0}


def test_a_contrast_by_hand():
    """Rows at 0, 90 and 0 degrees, of clusters 0, 0 and 1; tau 1, so that tau / .5 = 2."""
    rows = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]], dtype=torch.float64)
    labels = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    there = torch.ones((1, 3), dtype=torch.float64)
    first = 0.0 - np.log(1.0 + np.e)
    second = 0.0 - np.log(2.0)
    expected = -2.0 * (first + second) / 3.0
    found = float(supervised_contrast(rows, labels, there, 1.0))
    assert found == pytest.approx(expected, rel=1e-5)
    assert float(supervised_contrast(rows, labels * 0 - 1, there, 1.0)) == 0.0


def test_the_weights_of_the_specification():
    """cos .2 gives (.75, .25), .95 equal weights, and -1 a user alone."""
    half = np.array([0.5, 0.5])
    for cosine, expected in ((0.2, [0.75, 0.25]), (0.95, [0.5, 0.5]), (-1.0, [1.0, 0.0])):
        found = mixture_weights(np.array([[1.0, cosine], [cosine, 1.0]]), half, 0.8)
        assert found[0].tolist() == pytest.approx(expected)
        assert found[1].tolist() == pytest.approx(expected[::-1])


def test_a_projection_is_on_the_simplex_and_nearest():
    rng = np.random.default_rng(2)
    points = rng.normal(size=(50, 7)) * 3
    found = on_simplex(points)
    assert (found >= 0).all()
    assert found.sum(1) == pytest.approx(1.0)
    others = rng.dirichlet(np.ones(7), size=200)
    nearest = ((points - found) ** 2).sum(1)
    assert (((points[:, None] - others) ** 2).sum(2).min(1) >= nearest - 1e-12).all()


def test_the_term_of_the_mixture_by_hand():
    """theta (3, 4) and a (1, 0): the cosine's numerator is 3 and |theta| 5."""
    term = {}
    for sign in ("paper", "released"):
        plan = plan_of(algorithm={"name": "pfedgraph", "dim": 2, "weight": 0.5, "sign": sign})
        algorithm = algorithm_of(plan, 1)
        padded = torch.tensor([[[3.0, 4.0], [9.0, 9.0]]], dtype=torch.float64)
        anchor = torch.tensor([[[1.0, 0.0], [9.0, 9.0]]], dtype=torch.float64)
        there = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        batch = Batch(label=there, weight=there, there=there)
        v = Values({"own_item_embedding": padded, "anchor": anchor})
        term[sign] = float(algorithm.joint(v, batch))
    assert term == {"paper": pytest.approx(-0.3), "released": pytest.approx(0.3)}


def test_convolutions_by_hand():
    """User 1 with item 2: layers 1, 1.5, 1.75, 1.875, or 1 and three times 1.5 as released."""
    one = torch.tensor([[1.0]]), torch.tensor([[[2.0], [4.0]]]), torch.tensor([[1.0, 0.0]])
    assert convolved(*one, "from_previous").tolist() == [[1.53125]]
    assert convolved(*one, "from_first").tolist() == [[1.375]]
    # The user of the specification's path, with both items: 7 / 3 in its first layer.
    star = *one[:2], torch.ones((1, 2))
    assert float(convolved(*star, "from_first")) == pytest.approx((1.0 + 3 * 7 / 3) / 4)
    assert float(convolved(*star, "from_previous")) == pytest.approx(
        (1 + 7 / 3 + 25 / 9 + 79 / 27) / 4
    )


@pytest.mark.parametrize("way", ["from_previous", "from_first"])
def test_a_user_tells_its_positives_from_others_by_their_rows_alone(way):
    """Rows that are equal have the same score, and a longer vector doesn't lower the loss."""
    settings = {"name": "perfedrec", "dim": 4, "convolution": way}
    algorithm = algorithm_of(plan_of(algorithm=settings), 6)
    rows = torch.ones((1, 6, 4)) * torch.tensor([1.0, -2.0, 0.5, 3.0])
    label = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    for length in (0.0, 1.0, 100.0):
        values = Values({"own_item_embedding": rows, "user_embedding": length * torch.ones((1, 4))})
        loss = algorithm.loss(values, Batch(label=label, weight=label * 0 + 1 / 6, there=None))
        assert float(loss) == pytest.approx(math.log(2.0))


def test_a_loss_in_pieces_is_that_of_all_pairs_and_depends_on_its_user_alone():
    """Users with 10 and 150 positives of 200 rows, together and with themselves."""
    algorithm = algorithm_of(plan_of(algorithm={"name": "perfedrec", "dim": 4}), 200)
    random = torch.Generator().manual_seed(5)
    table = torch.randn((2, 200, 4), generator=random)
    vector = torch.randn((2, 4), generator=random)
    label = (torch.arange(200)[None] < torch.tensor([[10], [150]])).float()
    weight = torch.full((2, 200), 1 / 256)

    def found(users, dtype):
        own = table[users].to(dtype).requires_grad_()
        values = Values({"own_item_embedding": own, "user_embedding": vector[users].to(dtype)})
        batch = Batch(label=label[users], weight=weight[users].to(dtype), there=None)
        loss = algorithm.loss(values, batch)
        return loss, torch.autograd.grad(loss.sum(), [own])[0]

    both = found([0, 1], torch.float32)
    for user in range(2):
        for one, alone in zip(both, found([user, user], torch.float32), strict=True):
            assert torch.equal(one[user], alone[0])
    loss, _ = found([0, 1], torch.float64)
    p = convolved(vector.double(), table.double(), label.double(), "from_previous")
    for user, n_positives in enumerate((10, 150)):
        scores = table[user].double() @ p[user]
        apart = scores[n_positives:] - scores[:n_positives, None]
        assert float(loss[user].detach()) == pytest.approx(
            float(torch.log1p(apart.exp()).mean()), 1e-12
        )


def test_clusters_get_their_means():
    """Tables 1, 3 and 5 in clusters {0, 0, 1}."""
    tables = np.array([1.0, 3.0, 5.0]).reshape(3, 1, 1)
    vectors = np.array([[0.0], [0.1], [9.0]])
    own, shared = personalised("perfedrec", tables, vectors, clusters=2)
    for found in own.values():
        assert found.reshape(-1).tolist() == pytest.approx([2.0, 2.0, 5.0])
    assert not shared


@pytest.mark.parametrize("name", ["cofedrec", "perfedrec"])
def test_an_empty_cluster_changes_no_table(name, monkeypatch):
    """Numbers 0 and 2 of three clusters in place of 0 and 1 of two."""
    tables, found = np.random.default_rng(6).normal(size=(6, 6, 2)), []
    for gap in (1, 2):
        labels = np.array([0, gap, 0, 0, gap, gap])
        monkeypatch.setattr(
            f"fedrec.algorithms.{name}.clusters_of", lambda *_, labels=labels, **__: labels
        )
        found.append(personalised(name, tables, clusters=3)[0])
    assert found[0].keys() == found[1].keys()
    for parameter, values in found[0].items():
        assert np.array_equal(values, found[1][parameter])
        assert not np.array_equal(values, tables)


def test_k_means_finds_what_is_apart_and_gives_the_same_again():
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(size=(20, 3)) + 10 * k for k in range(4)])
    labels = clusters_of(rows, 4, seed=5)
    assert [len(set(labels[20 * k : 20 * (k + 1)])) for k in range(4)] == [1] * 4
    assert len(set(labels)) == 4
    assert np.array_equal(labels, clusters_of(rows, 4, seed=5))
    assert len(clusters_of(rows[:3], 100, seed=5)) == 3
    assert clusters_of(np.ones((5, 2)), 3, seed=5).shape == (5,)


@pytest.mark.parametrize("name", NAMES)
def test_odd_cohorts_get_finite_tables(name):
    """One user, users that are all alike, tables of zeros, more clusters than rows."""
    many = {} if name == "pfedgraph" else {"clusters": 50}
    table = np.random.default_rng(4).normal(size=(1, 6, 2))
    for tables in (table, np.repeat(table, 4, axis=0), np.zeros((3, 6, 2))):
        own, _ = personalised(name, tables, **many)
        for parameter, found in own.items():
            assert found.shape == tables.shape
            if parameter != "anchor":
                assert np.abs(found - tables).max() < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_protections_are_refused_with_the_reason(name):
    assert check_plan(plan_of(algorithm={"name": name})) == []
    assert ALGORITHMS[name].about.exposes.in_the_clear
    (sentence,) = check_plan(plan_of(algorithm={"name": name}, protection={"name": "bfv"}))
    assert 'protection.name = "none"' in sentence


class Drawn(Senders):
    """Users whose tables were drawn, and what a server writes for them."""

    def __init__(self, n_users: int, shape: tuple[int, int], seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.keys = random.permutation(n_users) - n_users // 2
        self.samples = random.integers(1, 50, n_users)
        self.tables = random.standard_normal((n_users, *shape)).astype(np.float32)
        self.written: dict[tuple[str, int], bytes] = {}

    def shown(self, name):
        return self.tables[:, 0]

    def read(self, name, users):
        return self.tables[users]

    def write(self, name, table_of, tables):
        for user in np.nonzero((table_of >= 0) & (table_of < len(tables)))[0]:
            self.written[name, int(self.keys[user])] = tables[table_of[user]].tobytes()


@pytest.mark.parametrize("name", ["gpfedrec", *NAMES])
def test_neither_threads_nor_the_order_of_senders_change_a_bit(name):
    """OpenBLAS multiplies 100 x 100 by 100 x 6,000 values differently on one and two threads."""
    own = {"gpfedrec": {"item_rate_scale": 1.0}}.get(name, {})
    server = ServerHalf(plan_of(algorithm={"name": name, "dim": 8, **own}), 750)
    found = []
    for threads, turned in ((1, False), (2, False), (2, True)):
        senders = Drawn(100, (750, 8))
        if turned:
            for each in ("keys", "samples", "tables"):
                setattr(senders, each, getattr(senders, each)[::-1])
        with threadpool_limits(threads, user_api="blas"):
            shared = personalise(server, 2, server.initial_shared(), senders)
        computed = {name: values.tobytes() for name, values in shared.items()}
        found.append((computed, dict(sorted(senders.written.items()))))
    assert found[0][1] or found[0][0]
    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "F16", "XX"])
def test_computed_values_of_another_type_are_refused(kind):
    """Some types of safetensors have no counterpart in NumPy."""
    server = ServerHalf(
        plan_of(algorithm={"name": "gpfedrec", "dim": 2, "item_rate_scale": 1.0}), 4
    )
    n_bytes = {"F8_E4M3": 8}.get(kind, 16)
    tensor = {"dtype": kind, "shape": [4, 2], "data_offsets": [0, n_bytes]}
    header = json.dumps({"item_embedding": tensor}).encode()
    seen = len(header).to_bytes(8, "little") + header + bytes(n_bytes)
    with pytest.raises(ProtocolError, match="server computed"):
        parts_of_publication(
            server, server.initial_shared(), b"sum" + seen + len(seen).to_bytes(8, "little")
        )


def test_a_server_reads_no_change_beyond_a_user_s_bound():
    """A sum is within its bounds if others leave room. Single updates are read one by one."""
    tensor = UpdateTensor(name="item_embedding", shape=(2,), limit=2.0, fraction_bits=4)
    steps = np.array([3 * tensor.bound, -3 * tensor.bound, tensor.bound], dtype=np.int16)
    assert values_of(steps, np.ones(3), tensor).tolist() == [3.0, -1.0, 3.0]
