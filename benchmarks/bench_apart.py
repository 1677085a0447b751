"""A training round of GPFedRec on ML-100K: fedrec against the usual loop.

Model, samples and steps are those of `bench_fedncf`, with a network and an item table of each
user's own, whose distance from a received table is part of the loss. The server has the cosines of
all tables and their mean over each user's neighbours, in the loop as two matrix products.

Least arithmetic and traffic: those of FedNCF, and two products of all users' tables, one of which
has each pair of users once.

`--released FOLDER` times the paper's code, too: its first round, with all tensors on the processor
and negatives drawn before. It is a clone of github.com/Zhangcx19/GPFedRec (commit edb66e1) and
imports pandas and scikit-learn. TensorBoard's writer, which it imports and does not use, is left
out. Its noise has a scale of 1e-30, as torch refuses the default of 0.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from bench_fedncf import BATCH, DIM, RATE, SCALE, ClientModel, least, train_client
from client_samples import drawn_samples
from per_client_loop import Cost, Loop, Work, compare, plan_of, tensors_of

from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState


def smoothed_round(users: UserSplit, shared: SharedState, private: PrivateState) -> torch.Tensor:
    """Train every client of GPFedRec on its own, and average tables over the graph."""
    rng = np.random.default_rng(0)
    own, table = tensors_of(private), tensors_of(shared)["item_embedding"]
    uploads = torch.empty((len(users), table.numel()))
    for index in range(len(users)):
        item, label = drawn_samples(users.train_of(index), len(table), rng)
        start = {name: values[index] for name, values in own.items()} | {"item_embedding": table}
        model = ClientModel(start["user_embedding"], start)
        train_client(model, item, label, received=start["smoothed_item_embedding"])
        uploads[index] = model.items.weight.detach().reshape(-1)
    directions = torch.nn.functional.normalize(uploads)
    similar = directions @ directions.T
    near = (similar > similar.mean()).to(torch.float32)
    return near / near.sum(1, keepdim=True).clamp(min=1.0) @ uploads


def released_round(folder: Path) -> Loop:
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


def least_smoothed(work: Work) -> Cost:
    """Return FedNCF's work, and two products of all users' tables."""
    values = float(work.n_items * DIM)
    trained = least(work)
    return Cost(
        flops=trained.flops + 3.0 * work.n_users**2 * values,
        bytes=trained.bytes + 24.0 * work.n_users * values,
    )


def main() -> None:
    """Print both sides' round times and their ratio."""
    plans = {"gpfedrec": plan_of({"name": "gpfedrec"}, clip=256.0)}
    compare(
        "GPFedRec, dim 32",
        plans,
        smoothed_round,
        least_smoothed,
        document=__doc__,
        released=released_round,
    )


if __name__ == "__main__":
    main()
