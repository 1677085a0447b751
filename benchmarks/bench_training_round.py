"""A training round of ML-100K: fedrec's cohort trainer against the usual per-client loop.

Both sides do the same work: FedMF, dim 32, every one of the 943 users, 4 negatives drawn for each
positive, 2 local epochs of minibatches of 256, and the aggregation of the item table. The loop is
written as most federated code is: for every client a model (nn.Module), a TensorDataset, a
DataLoader and an optimizer; autograd; then the average of the clients' changes.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from measuring import describe_machine, interleaved, print_ratio
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedrec.config.schema import Plan
from fedrec.data import fetch_ml_100k, leave_one_out
from fedrec.data.splits import UserSplit
from fedrec.training.learner import Learner


class ClientModel(nn.Module):
    """One client's user vector and its copy of the item table."""

    def __init__(self, user: torch.Tensor, items: torch.Tensor) -> None:
        super().__init__()
        self.user = nn.Parameter(user.clone())
        self.items = nn.Embedding.from_pretrained(items.clone(), freeze=False)

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        """Return the logits of a minibatch."""
        return self.items(item) @ self.user


def plain_round(users: UserSplit, vectors: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Train every client on its own, one after the other, and average the changes."""
    rng = np.random.default_rng(0)
    n_items = len(items)
    change = torch.zeros_like(items)
    counts = torch.zeros(n_items)
    loss_of = nn.BCEWithLogitsLoss()
    for index in range(len(users)):
        positives = users.train_of(index)
        free = np.setdiff1d(np.arange(n_items), positives)
        item = np.concatenate([positives, rng.choice(free, 4 * len(positives))])
        label = np.zeros(len(item), dtype=np.float32)
        label[: len(positives)] = 1.0
        model = ClientModel(vectors[index], items)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loader = DataLoader(
            TensorDataset(torch.from_numpy(item), torch.from_numpy(label)),
            batch_size=256,
            shuffle=True,
        )
        for _ in range(2):
            for batch_item, batch_label in loader:
                optimizer.zero_grad()
                loss_of(model(batch_item), batch_label).backward()
                optimizer.step()
        vectors[index] = model.user.detach()
        change += model.items.weight.detach() - items
        counts[torch.from_numpy(np.unique(item))] += 1
    return items + change / counts.clamp(min=1)[:, None]


def main() -> None:
    """Print both sides' round times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    data = fetch_ml_100k()
    interactions, _ = data.read()
    users = leave_one_out(interactions.deduplicated(), data.catalogue)
    n_items = len(data.catalogue)
    print(describe_machine())
    sides = {}
    for structure, rank in (("dense", 1), ("colr", 8)):
        plan = Plan.model_validate(
            {
                "federation": {"maximum_users": 1024, "minimum_item_users": 1},
                "algorithm": {"dim": 32},
                "update": {"structure": structure, "rank": rank},
                "evaluation": {"every_rounds": 1_000_000},
            }
        )
        learner = Learner(plan, n_items)
        shared, private = learner.initial_shared(), learner.initial_private(users)

        def round_of(learner=learner, shared=shared, private=private):
            part = learner.contribute("train", 1, shared, users, private)
            return learner.apply("train", 1, shared, part.vector)

        sides[f"fedrec {structure}"] = round_of
    vectors = torch.from_numpy(private.tensors["user_embedding"].copy())
    items = torch.from_numpy(shared.tensors["item_embedding"].astype(np.float32))
    sides["per-client loop"] = lambda: plain_round(users, vectors.clone(), items)
    seconds = interleaved(sides, runs=runs)
    samples = 2 * 5 * users.n_train
    print(f"ML-100K, FedMF d=32, {len(users)} users, {samples:,} sample updates a round")
    for name in sides:
        if name != "per-client loop":
            print_ratio("per-client loop", name, seconds)
            print(
                f"  {samples / np.median(seconds[name]) / 1e6:.2f} million sample updates a second"
            )


if __name__ == "__main__":
    main()
