"""A round of a model with private item rows on ML-100K: the trainer against the usual loop.

An algorithm of a page (`private_rows`), for which nothing is compiled: dim 32, ten epochs of one
minibatch of up to 2,048 samples, a shared and an own item table for each of the 943 users. The loop
is a module with two embedding tables for each client; see `per_client_loop`. Own tables that the
clients keep take 203 MB on either side.
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import batches, drawn_samples
from per_client_loop import Cost, Work, compare, plan_of, tensors_of
from private_rows import APART, BATCH, DIM, EPOCHS, RATE, ROW_RATE, SPARSE, PrivateRows
from torch import nn

from fedrec.algorithms import ALGORITHMS
from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState


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
        """Return the logits of a minibatch, and the penalty."""
        own, shared = self.own(item), self.items(item)
        apart = (own - shared).square().mean()
        penalty = SPARSE * shared.abs().mean() - APART * apart
        return (own + shared) @ self.head + self.bias, penalty


def train_client(model: ClientModel, item: np.ndarray, label: np.ndarray) -> None:
    """Train everything at once, ten times over."""
    loss_of = nn.BCEWithLogitsLoss()
    tables = [*model.own.parameters(), *model.items.parameters()]
    optimizer = torch.optim.SGD(
        [{"params": tables, "lr": ROW_RATE}, {"params": [model.head, model.bias], "lr": RATE}],
        lr=RATE,
    )
    for batch_item, batch_label in batches(item, label, epochs=EPOCHS, batch_size=BATCH):
        optimizer.zero_grad()
        logits, penalty = model(batch_item)
        (loss_of(logits, batch_label) + penalty).backward()
        optimizer.step()


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


def least(work: Work) -> Cost:
    """Return 8 d for each sample, and for each pair the traffic of two rows and of the sum."""
    return Cost(flops=8.0 * DIM * work.samples, bytes=28.0 * DIM * work.pairs)


def main() -> None:
    """Print both sides' round times and their ratio."""
    registered = dict(ALGORITHMS.items()) | {PrivateRows.name: PrivateRows}
    ALGORITHMS.__dict__["_all"] = registered
    plans = {"dense": plan_of({"name": PrivateRows.name}, clip=64.0)}
    compare("Private rows, dim 32", plans, plain_round, least, document=__doc__)


if __name__ == "__main__":
    main()
