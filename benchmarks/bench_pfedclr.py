"""A round of PFedCLR on ML-100K: the trainer against the usual loop.

Dim 16, rank 2, for each of the 943 users ten epochs of Adam over the item table and ten over the
user's vector, A and B, in minibatches of 256 samples. The loop is two modules for each client, one
a step; see `per_client_loop`. It leaves the scores of all items, which fedrec also keeps for every
user, for later. Both sides move rows that a user touches; the loop's Adam goes over whole tables.
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import batches, drawn_samples
from per_client_loop import Cost, Work, compare, plan_of, tensors_of
from torch import nn

from fedrec.algorithms import PFedCLRSettings
from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState

SETTINGS = PFedCLRSettings(batch_size=256)


class Shared(nn.Module):
    """Step 1: a client's copy of the item table, trained under its vector as it is."""

    def __init__(self, items: torch.Tensor, vector: torch.Tensor) -> None:
        super().__init__()
        self.items = nn.Embedding.from_pretrained(items.clone(), freeze=False)
        self.vector = vector

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        """Return the logits of a minibatch."""
        return self.items(item) @ self.vector


class Personal(nn.Module):
    """Step 2: a client's vector, A and B over the table that Step 1 left."""

    def __init__(
        self, items: torch.Tensor, vector: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> None:
        super().__init__()
        self.items = nn.Embedding.from_pretrained(items, freeze=True)
        self.vector, self.b = nn.Parameter(vector.clone()), nn.Parameter(b.clone())
        self.a = nn.Embedding.from_pretrained(a.clone(), freeze=False)

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        """Return the logits of a minibatch."""
        return (self.items(item) + self.a(item) @ self.b) @ self.vector


def train(model: nn.Module, item: np.ndarray, label: np.ndarray) -> None:
    """Train what of a module is to be trained, ten times over."""
    loss_of = nn.BCEWithLogitsLoss()
    trained = [values for values in model.parameters() if values.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=SETTINGS.learning_rate)
    every = batches(item, label, epochs=SETTINGS.local_epochs, batch_size=SETTINGS.batch_size)
    for batch_item, batch_label in every:
        optimizer.zero_grad()
        loss_of(model(batch_item), batch_label).backward()
        optimizer.step()


def plain_round(users: UserSplit, shared: SharedState, private: PrivateState) -> torch.Tensor:
    """Train every client on its own, one after the other, and average tables by their samples."""
    rng = np.random.default_rng(0)
    items = tensors_of(shared)["item_embedding"]
    own = {name: torch.from_numpy(values) for name, values in private.tensors.items()}
    total, n_positives = torch.zeros_like(items), 0
    for index in range(len(users)):
        positives = users.train_of(index)
        item, label = drawn_samples(positives, len(items), rng)
        first = Shared(items, own["user_embedding"][index])
        train(first, item, label)
        table = first.items.weight.detach()
        factors = own["item_factor"][index], own["factor"][index]
        train(Personal(table, own["user_embedding"][index], *factors), item, label)
        total += len(positives) * table
        n_positives += len(positives)
    return total / n_positives


def least(work: Work) -> Cost:
    """Return 6 d a sample of Step 1 and 8 d of Step 2; a touched row's traffic in both."""
    dim, rank = SETTINGS.dim, SETTINGS.rank
    return Cost(flops=14.0 * dim * work.samples, bytes=(24.0 * dim + 24.0 * rank) * work.pairs)


def main() -> None:
    """Print both sides' round times and their ratio."""
    plans = {"clr": plan_of(SETTINGS.model_dump(), clip=16.0)}
    compare("PFedCLR, dim 16, rank 2", plans, plain_round, least, document=__doc__)


if __name__ == "__main__":
    main()
