"""A round of FedRAP on ML-100K with the authors' settings: fedrec against the usual loop.

Dim 32, at most ten epochs of minibatches of 2,048 samples, a shared and an own item table for each
of the 943 users, weight decay of whole tables, constant weights as released. The loop is a module
with two embedding tables for each client; see `per_client_loop`. Own tables that the clients keep
take 203 MB on either side.

`--released FOLDER` times the paper's code, too: its first round, which trains on the processor what
the loop here trains, negatives drawn before. It is a clone of github.com/mtics/FedRAP (commit
d6ee2ac) and imports pandas.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import torch
from client_samples import batches, drawn_samples
from per_client_loop import Cost, Loop, Work, compare, plan_of, tensors_of
from torch import nn

from fedrec.algorithms import FedRAPSettings
from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState

SETTINGS = FedRAPSettings(schedule="fixed")


class ClientModel(nn.Module):
    """One client's head, its own table and its copy of the shared one."""

    def __init__(
        self, head: torch.Tensor, bias: torch.Tensor, own: torch.Tensor, items: torch.Tensor
    ) -> None:
        super().__init__()
        self.head, self.bias = nn.Parameter(head.clone()), nn.Parameter(bias.clone())
        self.own = nn.Embedding.from_pretrained(own, freeze=False)
        self.items = nn.Embedding.from_pretrained(items.clone(), freeze=False)

    def forward(self, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of a minibatch, and what the regularisers add."""
        own, shared = self.own(item), self.items(item)
        sparse = SETTINGS.sparsity_weight * shared.abs().mean()
        apart = SETTINGS.difference_weight * (own - shared).square().mean()
        return (own + shared) @ self.head + self.bias, sparse - apart


def train_client(model: ClientModel, item: np.ndarray, label: np.ndarray) -> None:
    """Train everything at once, ten times over unless the loss stands still."""
    loss_of = nn.BCEWithLogitsLoss()
    tables = [*model.own.parameters(), *model.items.parameters()]
    optimizer = torch.optim.SGD(
        [
            {"params": tables, "lr": SETTINGS.item_rate},
            {"params": [model.head, model.bias], "lr": SETTINGS.learning_rate},
        ],
        lr=SETTINGS.learning_rate,
        weight_decay=SETTINGS.weight_decay,
    )
    slower = torch.optim.lr_scheduler.ExponentialLR(optimizer, SETTINGS.batch_decay)
    total, seen, last, since = 0.0, 0, float("inf"), 0
    every = batches(item, label, epochs=SETTINGS.local_epochs, batch_size=SETTINGS.batch_size)
    for batch_item, batch_label in every:
        optimizer.zero_grad()
        logits, more = model(batch_item)
        loss = loss_of(logits, batch_label) + more
        loss.backward()
        optimizer.step()
        slower.step()
        total, seen = total + loss.item() * len(batch_item), seen + len(batch_item)
        since += len(batch_item)
        if since == len(item):
            mean, since = total / seen, 0
            if abs(mean - last) < SETTINGS.tolerance * abs(last):
                break
            last = mean


def plain_round(users: UserSplit, shared: SharedState, private: PrivateState) -> torch.Tensor:
    """Train every client on its own, one after the other, and average the shared tables."""
    rng = np.random.default_rng(0)
    items = tensors_of(shared)["item_embedding"]
    own = {name: torch.from_numpy(values) for name, values in private.tensors.items()}
    total = torch.zeros_like(items)
    for index in range(len(users)):
        item, label = drawn_samples(users.train_of(index), len(items), rng)
        table = own["own_embedding"][index].clone()
        model = ClientModel(own["user_embedding"][index], own["user_bias"][index], table, items)
        train_client(model, item, label)
        total += model.items.weight.detach()
    return total / len(users)


def released_round(folder: Path) -> Loop:
    """Return the first round of the paper's code."""
    sys.path.insert(0, str(folder))
    module = importlib.import_module("model.model")

    def play(users: UserSplit, shared: SharedState, private: PrivateState) -> object:
        n_items = len(shared.tensors["item_embedding"])
        config = {
            "num_users": len(users), "num_items": n_items, "latent_dim": SETTINGS.dim,
            "clients_sample_ratio": 1.0, "top_k": 10, "use_cuda": False, "regular": "l1",
            "lambda": SETTINGS.difference_weight, "mu": SETTINGS.sparsity_weight,
            "vary_param": "fixed", "decay_rate": 0.97, "tol": SETTINGS.tolerance,
            "local_epoch": SETTINGS.local_epochs, "batch_size": SETTINGS.batch_size,
            "lr_network": SETTINGS.learning_rate, "lr_args": SETTINGS.item_rate,
            "l2_regularization": SETTINGS.weight_decay,
        }  # fmt: skip
        rng = np.random.default_rng(0)
        drawn = [drawn_samples(users.train_of(i), n_items, rng) for i in range(len(users))]
        samples = [[index] * len(item) for index, (item, _) in enumerate(drawn)]
        items = [item.tolist() for item, _ in drawn]
        labels = [label.tolist() for _, label in drawn]
        engine = module.FedRAPEngine(config)
        table = nn.Embedding(n_items, SETTINGS.dim)
        return engine.federatedTrainOneRound([samples, items, labels], table, 0)

    return play


def least(work: Work) -> Cost:
    """Return 8 d for each sample, and for each pair the traffic of two rows and of the sum."""
    return Cost(flops=8.0 * SETTINGS.dim * work.samples, bytes=28.0 * SETTINGS.dim * work.pairs)


def main() -> None:
    """Print both sides' round times and their ratio."""
    plans = {"dense": plan_of(SETTINGS.model_dump(), clip=16.0)}
    compare("FedRAP, dim 32", plans, plain_round, least, document=__doc__, released=released_round)


if __name__ == "__main__":
    main()
