"""A training round of FedNCF on ML-100K: fedrec against the usual loop.

Both sides do the same work: dim 32, layers of 32, 16 and 8 units, all 943 users, 4 negatives drawn
for each positive, one epoch of minibatches of 256 by plain SGD with rates of their own for network,
user vector and item rows. The server divides each item's changes by the users who touched it and
weights networks by training items (MF-SecAvg); see `per_client_loop`.

Least arithmetic: a layer of a inputs and c outputs takes 2 a c for each sample forwards and twice
that backwards, so 6 (32 d + 32 16 + 16 8 + 8) for each sample. The user's half of the first layer
is the same for a whole minibatch: 6 x 32 d for each of those. Least traffic, for each pair of user
and item: its row read (4 d bytes), and the sum of changes read and written (16 d).
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import batches, drawn_samples
from per_client_loop import Cost, Work, compare, plan_of, tensors_of
from torch import nn

from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState

DIM, BATCH, RATE, SCALE = 32, 256, 0.1, 80.0
UNITS = (32, 16, 8, 1)


class ClientModel(nn.Module):
    """One client's user vector, its copy of the item table and its network."""

    def __init__(self, user: torch.Tensor, shared: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.user = nn.Parameter(user.clone())
        self.items = nn.Embedding.from_pretrained(shared["item_embedding"].clone(), freeze=False)
        layers: list[nn.Module] = []
        for layer, (inputs, outputs) in enumerate(zip((2 * DIM, *UNITS), UNITS, strict=False), 1):
            linear = nn.Linear(inputs, outputs)
            with torch.no_grad():
                linear.weight.copy_(shared[f"weight_{layer}"])
                linear.bias.copy_(shared[f"bias_{layer}"])
            layers += [linear, nn.ReLU()]
        self.network = nn.Sequential(*layers[:-1])

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        """Return the logits of a minibatch."""
        own = self.user.expand(len(item), -1)
        return self.network(torch.cat([own, self.items(item)], dim=1))[:, 0]

    def named_network(self) -> dict[str, torch.Tensor]:
        """Return the network's tensors by the names of the shared ones."""
        linear = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        found = {f"weight_{number}": layer.weight for number, layer in enumerate(linear, 1)}
        found |= {f"bias_{number}": layer.bias for number, layer in enumerate(linear, 1)}
        return {name: values.detach() for name, values in found.items()}


def train_client(
    model: ClientModel,
    item: np.ndarray,
    label: np.ndarray,
    received: torch.Tensor | None = None,
) -> None:
    """Train everything of a client by one optimizer with three groups.

    Args:
        received: a table whose mean squared distance is added to the loss.
    """
    loss_of, rows = nn.BCEWithLogitsLoss(), model.items.weight
    optimizer = torch.optim.SGD(
        [
            {"params": model.network.parameters()},
            {"params": [model.user], "lr": RATE * SCALE},
            {"params": [rows], "lr": RATE * len(rows) * SCALE},
        ],
        lr=RATE,
    )
    for batch_item, batch_label in batches(item, label, epochs=1, batch_size=BATCH):
        optimizer.zero_grad()
        loss = loss_of(model(batch_item), batch_label)
        if received is not None:
            loss = loss + nn.functional.mse_loss(rows, received)
        loss.backward()
        optimizer.step()


def plain_round(
    users: UserSplit, shared: SharedState, private: PrivateState
) -> dict[str, torch.Tensor]:
    """Train every client on its own, one after the other, and average as MF-SecAvg does."""
    rng = np.random.default_rng(0)
    start = dict(tensors_of(shared))
    vectors, items = tensors_of(private)["user_embedding"], start["item_embedding"]
    change = {name: torch.zeros_like(values) for name, values in start.items()}
    counts, weights = torch.zeros(len(items)), 0.0
    for index in range(len(users)):
        positives = users.train_of(index)
        item, label = drawn_samples(positives, len(items), rng)
        model = ClientModel(vectors[index], start)
        train_client(model, item, label)
        vectors[index] = model.user.detach()
        change["item_embedding"] += model.items.weight.detach() - items
        counts[torch.from_numpy(np.unique(item))] += 1
        for name, values in model.named_network().items():
            change[name] += (values - start[name]) * len(positives)
        weights += len(positives)
    mean = {name: values / weights for name, values in change.items()}
    mean["item_embedding"] = change["item_embedding"] / counts.clamp(min=1)[:, None]
    return {name: values + mean[name] for name, values in start.items()}


def least(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    sample = 32 * DIM + 32 * 16 + 16 * 8 + 8
    return Cost(
        flops=6.0 * sample * work.samples + 6.0 * 32 * DIM * work.batches,
        bytes=20.0 * DIM * work.pairs,
    )


def main() -> None:
    """Print both sides' round times and their ratio."""
    algorithm: dict[str, object] = {
        "name": "fedncf",
        "dim": DIM,
        "batch_size": BATCH,
        "learning_rate": RATE,
        "user_rate_scale": SCALE,
        "item_rate_scale": SCALE,
    }
    plans = {"dense": plan_of(algorithm, clip=256.0)}
    compare("FedNCF, dim 32", plans, plain_round, least, document=__doc__)


if __name__ == "__main__":
    main()
