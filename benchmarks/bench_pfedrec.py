"""A training round of PFedRec on ML-100K: fedrec's compiled trainer against the usual loop.

Both sides do the same work: dim 32, all 943 users, 4 negatives drawn for each positive, one epoch
of minibatches of 256. For every minibatch there are two steps, first of the user's head and then
of the item rows with the scores computed once more. At the end a client scores all items with its
own table, which is what the paper measures by, and the server takes the mean of all tables; see
`per_client_loop`.

Least arithmetic, for each sample 8 d: two scores, the gradient of the head, the step of its row
(2 d each); and 2 d for every user and item of the final scores. Least traffic, for each pair of
user and item: its row read (4 d bytes), and the sum of changes read and written (16 d); and the
final scores, 4 bytes for every user and item.
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import batches, drawn_samples
from per_client_loop import Cost, Work, compare, plan_of, tensors_of
from torch import nn

from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState

DIM, BATCH, RATE, ITEM_SCALE = 32, 256, 0.1, 80.0


class ClientModel(nn.Module):
    """One client's head and its copy of the item table."""

    def __init__(self, head: torch.Tensor, bias: torch.Tensor, items: torch.Tensor) -> None:
        super().__init__()
        self.head = nn.Linear(len(head), 1)
        with torch.no_grad():
            self.head.weight.copy_(head[None])
            self.head.bias.copy_(bias)
        self.items = nn.Embedding.from_pretrained(items.clone(), freeze=False)

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        """Return the logits of a minibatch."""
        return self.head(self.items(item))[:, 0]


def train_client(model: ClientModel, item: np.ndarray, label: np.ndarray) -> None:
    """Train head and rows in turn on every minibatch."""
    loss_of, rows = nn.BCEWithLogitsLoss(), model.items.weight
    head_optimizer = torch.optim.SGD(model.head.parameters(), lr=RATE)
    item_optimizer = torch.optim.SGD([rows], lr=RATE * len(rows) * ITEM_SCALE)
    for batch_item, batch_label in batches(item, label, epochs=1, batch_size=BATCH):
        for optimizer, own, other in (
            (head_optimizer, model.head, model.items),
            (item_optimizer, model.items, model.head),
        ):
            own.requires_grad_(True)
            other.requires_grad_(False)
            optimizer.zero_grad()
            loss_of(model(batch_item), batch_label).backward()
            optimizer.step()


def plain_round(users: UserSplit, shared: SharedState, private: PrivateState) -> torch.Tensor:
    """Train every client on its own, one after the other, and average the tables."""
    rng = np.random.default_rng(0)
    items, own = tensors_of(shared)["item_embedding"], tensors_of(private)
    heads, biases, scores = own["user_embedding"], own["user_bias"], own["personal_scores"]
    total, everything = torch.zeros_like(items), torch.arange(len(items))
    for index in range(len(users)):
        item, label = drawn_samples(users.train_of(index), len(items), rng)
        model = ClientModel(heads[index], biases[index], items)
        train_client(model, item, label)
        with torch.no_grad():
            heads[index], biases[index] = model.head.weight[0], model.head.bias[0]
            scores[index] = model(everything)
            total += model.items.weight
    return total / len(users)


def least(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    scored = work.n_users * work.n_items
    return Cost(
        flops=8.0 * DIM * work.samples + 2.0 * DIM * scored,
        bytes=20.0 * DIM * work.pairs + 4.0 * scored,
    )


def main() -> None:
    """Print both sides' round times and their ratio."""
    algorithm: dict[str, object] = {
        "name": "pfedrec",
        "dim": DIM,
        "batch_size": BATCH,
        "learning_rate": RATE,
        "item_rate_scale": ITEM_SCALE,
    }
    plans = {"dense": plan_of(algorithm, clip=256.0)}
    compare("PFedRec, dim 32", plans, plain_round, least, document=__doc__)


if __name__ == "__main__":
    main()
