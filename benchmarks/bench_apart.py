"""A round of a system whose server reads each update, on ML-100K: fedrec against the usual loop.

`--system` chooses GPFedRec (the default), PerFedRec, CoFedRec or pFedGraph. Both sides have the
model, samples, steps and server's rule of the system, with its default settings, all 943 users and
4 negatives drawn for each positive. In the loop, too, similarities and mixtures are matrix
products. Items have clusters in this first round, too, so that CoFedRec's contrast counts.

Least arithmetic: GPFedRec trains as FedNCF. PerFedRec and CoFedRec take 6 d for each pair of user
and item, for a score and two gradients, and CoFedRec 6 d for each pair of items in a minibatch.
Each step of Adam in pFedGraph takes 12 for every value of a table. The server multiplies the tables
of each pair of users once (GPFedRec, pFedGraph), and weighs all tables for each user once
(GPFedRec) or twice (pFedGraph). Least traffic: 24 bytes for every value of the users' tables.

Times are on the wall, and at the end also of the processor, for all that runs on one thread.

`--released FOLDER` times the paper's code, too: its first round, with all tensors on the processor.
Both import pandas and scikit-learn.

- GPFedRec: a clone of github.com/Zhangcx19/GPFedRec (commit edb66e1). Negatives are drawn before.
  TensorBoard's writer, which it imports and does not use, is left out. Its noise has a scale of
  1e-30, as torch refuses the default of 0.
- PerFedRec: a clone of github.com/sichunluo/PerFedRec (commit 4d0c8f0), with dim 32 and all users
  in place of 128. It draws one negative for each positive, reads its data and makes its graph.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import bench_pfedrec
import numpy as np
import torch
from bench_fedncf import BATCH, DIM, RATE, SCALE, ClientModel, least, train_client
from client_samples import batches, drawn_samples
from per_client_loop import ITEM_CLUSTERS, Cost, Loop, Work, compare, plan_of, tensors_of
from scipy.cluster.vq import kmeans2
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, softplus

from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState

Start = dict[str, torch.Tensor]
Train = Callable[[Start, np.ndarray, np.ndarray], tuple[torch.Tensor, torch.Tensor]]
"""Trains a client on its items and labels, and returns its table and vector."""

USER_CLUSTERS, ALIKE, SMOOTHING = 5, 0.9, 0.8


@dataclass(frozen=True, slots=True)
class System:
    """A system, its setting and the round of the loop.

    Attributes:
        clip: that of the update.
        train: a client's training.
        serve: the server's rule: given uploads (n_users, n_items, dim), users' vectors (n_users,
            dim) and numbers of training items, the first table, and random numbers.
        least: the least work of a round.
        released: given the folder of the paper's code, a round of it.
    """

    clip: float
    train: Train
    serve: Callable[..., object]
    least: Callable[[Work], Cost]
    released: Callable[[Path], Loop] | None = None

    def play(self, users: UserSplit, shared: SharedState, private: PrivateState) -> object:
        """Train every client on its own, one after the other, and make their models."""
        rng = np.random.default_rng(0)
        own, table = tensors_of(private), tensors_of(shared)["item_embedding"]
        uploads = torch.empty((len(users), *table.shape))
        vectors = torch.empty((len(users), table.shape[1]))
        for index in range(len(users)):
            start = {name: values[index] for name, values in own.items()}
            samples = drawn_samples(users.train_of(index), len(table), rng)
            uploads[index], vectors[index] = self.train(start | {"item_embedding": table}, *samples)
        return self.serve(uploads, vectors, np.diff(users.train_indptr), table, rng)


class Vectors(nn.Module):
    """One client's user vector and its copy of the item table."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.user = nn.Parameter(start["user_embedding"].clone())
        self.items = nn.Embedding.from_pretrained(start["item_embedding"].clone(), freeze=False)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the table and the vector."""
        return self.items.weight.detach(), self.user.detach()


def train_gpfedrec(
    start: Start, item: np.ndarray, label: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Train network, vector and rows, pulled to the received table."""
    model = ClientModel(start["user_embedding"], start)
    train_client(model, item, label, received=start["smoothed_item_embedding"])
    return model.items.weight.detach(), model.user.detach()


def smooth(uploads: torch.Tensor, *_: object) -> torch.Tensor:
    """Average tables over the graph of similar users."""
    tables = uploads.flatten(1)
    directions = normalize(tables)
    similar = directions @ directions.T
    near = (similar > similar.mean()).to(torch.float32)
    return near / near.sum(1, keepdim=True).clamp(min=1.0) @ tables


def train_perfedrec(
    start: Start, item: np.ndarray, label: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Train by BPR, with the vector after three layers over the user's edges; score all items."""
    model = Vectors(start)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch_item, batch_label in batches(item, label, epochs=1, batch_size=2048):
        positive = model.items(batch_item[batch_label > 0])
        negative = model.items(batch_item[batch_label == 0])
        if not (len(positive) and len(negative)):
            continue
        layers = [model.user]
        for _ in range(3):
            layers.append((layers[-1] + positive.sum(0)) / (1 + len(positive)))
        vector = torch.stack(layers).mean(0)
        apart = (negative @ vector)[:, None] - positive @ vector
        optimizer.zero_grad()
        softplus(apart).mean().backward()
        optimizer.step()
    table, vector = model.result()
    _scores = (table + 2.0 * start["item_embedding"]) @ vector / 3.0
    return table, vector


def cluster(uploads: torch.Tensor, vectors: torch.Tensor, *_: object) -> torch.Tensor:
    """Return the mean table of each user's cluster, and that of all users."""
    labels = kmeans2(vectors.double().numpy(), USER_CLUSTERS, minit="++", rng=0)[1]
    means = [uploads[torch.from_numpy(labels == name)].mean(0) for name in range(USER_CLUSTERS)]
    return torch.stack([*means, uploads.mean(0)])[[*labels, USER_CLUSTERS]]


def train_cofedrec(
    start: Start, item: np.ndarray, label: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Train the head and then the rows on every minibatch, these with the contrast."""
    model = bench_pfedrec.ClientModel(
        start["user_embedding"], start["user_bias"], start["item_embedding"]
    )
    rows = model.items.weight
    head = torch.optim.SGD(model.head.parameters(), lr=RATE)
    items = torch.optim.SGD([rows], lr=RATE * len(rows) * SCALE)
    for batch_item, batch_label in batches(item, label, epochs=1, batch_size=BATCH):
        rows.requires_grad_(False)
        head.zero_grad()
        binary_cross_entropy_with_logits(model(batch_item), batch_label).backward()
        head.step()
        rows.requires_grad_(True)
        items.zero_grad()
        distinct = batch_item.unique()
        loss = binary_cross_entropy_with_logits(model(batch_item), batch_label)
        (loss + 0.005 * contrast(rows[distinct], distinct % ITEM_CLUSTERS, 0.1)).backward()
        items.step()
    return rows.detach(), model.head.weight.detach()[0]


def contrast(rows: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the supervised contrast of rows, with a base temperature of .5."""
    directions = normalize(rows)
    itself = torch.eye(len(rows), dtype=torch.bool)
    cosines = (directions @ directions.T / temperature).masked_fill(itself, -1e30)
    same = (labels[:, None] == labels) & ~itself
    apart = ((cosines - cosines.logsumexp(1, keepdim=True)) * same).sum(1) / (same.sum(1) + 1e-6)
    return -temperature / 0.5 * apart.mean()


def merge(uploads: torch.Tensor, _: object, __: object, ___: object, rng: object) -> object:
    """Merge the users up to the elbow of their likeness with a drawn user."""
    assert isinstance(rng, np.random.Generator)
    labels = kmeans2(uploads.mean(0).double().numpy(), ITEM_CLUSTERS, minit="++", rng=rng)[1]
    star, name = int(rng.integers(len(uploads))), int(rng.choice(labels))
    rows = normalize(uploads[:, torch.from_numpy(labels == name)], dim=2)
    alike, order = (rows * rows[star]).sum((1, 2)).sort(descending=True)
    along = torch.arange(len(alike)) * (alike[0] - alike[-1])
    apart = (len(alike) - 1) * (alike[0] - alike) - along
    members = order[: int(apart.abs().argmax()) + 1]
    uploads[members] = uploads[members].mean(0)
    return uploads


def train_pfedgraph(
    start: Start, item: np.ndarray, label: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Train vector and whole table, with the cosine to the anchor, then score all items."""
    model, anchor = Vectors(start), start["anchor"]
    rows = model.items.weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch_item, batch_label in batches(item, label, epochs=10, batch_size=BATCH):
        optimizer.zero_grad()
        score = model.items(batch_item) @ model.user
        loss = binary_cross_entropy_with_logits(score, batch_label)
        (loss - 0.01 * (anchor * rows).sum() / rows.norm()).backward()
        optimizer.step()
    table, vector = model.result()
    _scores = table @ vector
    return table, vector


def infer_graph(
    uploads: torch.Tensor, _: object, n_items: np.ndarray, table: torch.Tensor, __: object
) -> object:
    """Mix tables and directions by weights on the simplex."""
    changes, tables = normalize((uploads - table).flatten(1)), uploads.flatten(1)
    cosine = changes @ changes.T
    distance = torch.where(cosine > ALIKE, -1.0, -cosine).fill_diagonal_(-1.0)
    goal = torch.from_numpy(n_items / n_items.sum()).float() - distance / (2.0 * SMOOTHING)
    excess = goal.sort(dim=1, descending=True)[0].cumsum(1) - 1.0
    below = (excess / torch.arange(1, len(goal) + 1)).max(1, keepdim=True)[0]
    weights = (goal - below).clamp(min=0.0)
    return weights @ tables, weights / tables.norm(dim=1) @ tables


def released_gpfedrec(folder: Path) -> Loop:
    """Return the first round of the paper's code."""
    sys.path.insert(0, str(folder))
    unused = ModuleType("tensorboardX")
    unused.SummaryWriter = None  # type: ignore[attr-defined]
    sys.modules["tensorboardX"] = unused
    torch.Tensor.cuda = lambda values: values  # type: ignore[assignment,method-assign]
    module = importlib.import_module("mlp")

    def play(users: UserSplit, shared: SharedState, private: PrivateState) -> object:
        n_items = len(shared.tensors["item_embedding"])
        config = {
            "num_users": len(users), "num_items": n_items, "latent_dim": DIM,
            "layers": [2 * DIM, 32, 16, 8], "use_cuda": False, "batch_size": BATCH, "lr": RATE,
            "lr_eta": SCALE, "clients_sample_ratio": 1.0, "reg": 1.0, "local_epoch": 1,
            "dp": 1e-30, "similarity_metric": "cosine", "neighborhood_size": 0,
            "neighborhood_threshold": 1.0, "mp_layers": 1,
        }  # fmt: skip
        rng = np.random.default_rng(0)
        drawn = [drawn_samples(users.train_of(i), n_items, rng) for i in range(len(users))]
        samples = [[0] * len(item) for item, _ in drawn]
        items = [item.tolist() for item, _ in drawn]
        labels = [label.tolist() for _, label in drawn]
        return module.MLPEngine(config).fed_train_a_round([samples, items, labels], 0)

    return play


def released_perfedrec(folder: Path) -> Loop:
    """Return the first round of the paper's script, of all users and on the processor."""
    sys.path.insert(0, str(folder / "PerFedRec"))
    network = (folder / "PerFedRec" / "GNN.py").read_text(encoding="utf-8")
    script = (folder / "PerFedRec" / "PerFedRec.py").read_text(encoding="utf-8")

    def play(users: UserSplit, shared: SharedState, private: PrivateState) -> object:
        module = ModuleType("GNN")
        exec(network.replace("cuda", "cpu"), module.__dict__)
        sys.modules["GNN"] = module
        with TemporaryDirectory() as data:
            for name, items in (
                ("train", map(users.train_of, range(len(users)))),
                ("test", users.test_items[:, None]),
            ):
                lines = (f"{u} {' '.join(map(str, row))}" for u, row in enumerate(items))
                (Path(data) / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
            before, sys.argv = sys.argv, [
                "PerFedRec.py", "--data_path", data, "--dataset", "", "--epoch", "1",
                "--embed_size", str(DIM),
            ]  # fmt: skip
            try:
                # After its one round, the script fails at the best of no measurements.
                with suppress(IndexError):
                    all_users = script.replace("each_round = 128", f"each_round = {len(users)}")
                    exec(all_users.replace("cuda", "cpu"), {"__name__": "__main__"})
            finally:
                sys.argv = before
                sys.modules.pop("utility.batch_test", None)
        return None

    return play


def _values(work: Work, dim: int) -> float:
    return float(work.n_items * dim)


def least_gpfedrec(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    trained, values = least(work), _values(work, DIM)
    return Cost(
        flops=trained.flops + 3.0 * work.n_users**2 * values,
        bytes=trained.bytes + 24.0 * work.n_users * values,
    )


def least_perfedrec(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    return Cost(flops=6.0 * DIM * work.pairs, bytes=24.0 * work.n_users * _values(work, DIM))


def least_cofedrec(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    items = work.pairs + work.pairs**2 / work.batches
    return Cost(flops=6.0 * DIM * items, bytes=24.0 * work.n_users * _values(work, DIM))


def least_pfedgraph(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    values = _values(work, 16)
    return Cost(
        flops=12.0 * values * work.batches + 5.0 * work.n_users**2 * values,
        bytes=24.0 * work.n_users * values,
    )


SYSTEMS = {
    "gpfedrec": System(256.0, train_gpfedrec, smooth, least_gpfedrec, released_gpfedrec),
    "perfedrec": System(16.0, train_perfedrec, cluster, least_perfedrec, released_perfedrec),
    "cofedrec": System(1024.0, train_cofedrec, merge, least_cofedrec),
    "pfedgraph": System(16.0, train_pfedgraph, infer_graph, least_pfedgraph),
}


def main() -> None:
    """Print both sides' round times and their ratio."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--system", choices=SYSTEMS, default="gpfedrec")
    options, others = parser.parse_known_args()
    name = options.system
    system = SYSTEMS[name]
    compare(
        name,
        {name: plan_of({"name": name}, clip=system.clip)},
        system.play,
        system.least,
        document=__doc__,
        released=system.released,
        arguments=others,
    )


if __name__ == "__main__":
    main()
