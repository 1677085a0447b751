"""A round of PLGC's mixing over FedMF on ML-100K: fedrec against the usual loop.

Dim 32, ten epochs of minibatches of up to 2,048 samples, an own item table for each of the 943
users beside the shared one, no regulariser. The loop is a module with two embedding tables for each
client, of which one is frozen; see `per_client_loop`. Both sides compute the mixture's share from
whole tables in every epoch; fedrec also keeps every user's scores of all items, which the loop
leaves for later. Own tables take 203 MB on either side.
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import batches, drawn_samples
from per_client_loop import Cost, Work, compare, plan_of, tensors_of
from torch import nn

from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState

DIM, BATCH, EPOCHS, RATE, FACTOR = 32, 2048, 10, 0.5, 0.95


class ClientModel(nn.Module):
    """One client's vector, its own table, and the version."""

    def __init__(self, vector: torch.Tensor, own: torch.Tensor, version: torch.Tensor) -> None:
        super().__init__()
        self.vector = nn.Parameter(vector.clone())
        self.own = nn.Embedding.from_pretrained(own, freeze=False)
        self.version = nn.Embedding.from_pretrained(version, freeze=True)
        self.share = 0.5

    def mix(self) -> None:
        """Take the share for an epoch."""
        with torch.no_grad():
            own, version = self.own.weight.square().sum(), self.version.weight.square().sum()
            self.share = float(own / (own + version))

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        """Return the logits of a minibatch."""
        rows = self.share * self.own(item) + (1.0 - self.share) * self.version(item)
        return rows @ self.vector


def train_client(model: ClientModel, item: np.ndarray, label: np.ndarray) -> None:
    """Train everything at once, ten times over, with a rate that falls after every minibatch."""
    loss_of = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD([model.vector, model.own.weight], lr=RATE)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, FACTOR)
    for _ in range(EPOCHS):
        model.mix()
        for batch_item, batch_label in batches(item, label, epochs=1, batch_size=BATCH):
            optimizer.zero_grad()
            loss_of(model(batch_item), batch_label).backward()
            optimizer.step()
            scheduler.step()


def plain_round(users: UserSplit, shared: SharedState, private: PrivateState) -> torch.Tensor:
    """Train every client on its own, one after the other, and average tables by their samples."""
    rng = np.random.default_rng(0)
    version = tensors_of(shared)["item_embedding"]
    own = {name: torch.from_numpy(values) for name, values in private.tensors.items()}
    total, n_positives = torch.zeros_like(version), 0
    for index in range(len(users)):
        positives = users.train_of(index)
        item, label = drawn_samples(positives, len(version), rng)
        table = own["own_item_embedding"][index].clone()
        table = table if own["begun"][index] else version.clone()
        model = ClientModel(own["user_embedding"][index], table, version)
        train_client(model, item, label)
        total += len(positives) * model.own.weight.detach()
        n_positives += len(positives)
    return total / n_positives


def least(work: Work) -> Cost:
    """Return 8 d for each sample; traffic of a touched row twice, and of every own table once."""
    tables = 4.0 * DIM * work.n_users * work.n_items
    return Cost(flops=8.0 * DIM * work.samples, bytes=16.0 * DIM * work.pairs + tables)


def main() -> None:
    """Print both sides' round times and their ratio."""
    base = {
        "name": "fedmf", "dim": DIM, "learning_rate": RATE, "regularisation": 0.0,
        "local_epochs": EPOCHS, "batch_size": BATCH,
    }  # fmt: skip
    algorithm = {"name": "plgc", "base": base, "weight": 0.0, "rate_factor": FACTOR}
    plans = {"plgc": plan_of(algorithm, clip=64.0)}
    compare("PLGC, mixing over FedMF", plans, plain_round, least, document=__doc__)


if __name__ == "__main__":
    main()
