"""A training round of FedMF on ML-100K: fedrec's cohort trainer against the usual loop.

Both sides do the same work: dim 32, every one of the 943 users, 4 negatives drawn for each
positive, 2 local epochs of minibatches of 256, and the aggregation of the item table; see
`per_client_loop`.

Least arithmetic, for each sample 6 d: its score, the gradient of p, the step of its row (2 d
each; regularisation, sigmoid and sampling not counted). Least traffic, for each pair of user and
item: its row read (4 d bytes), and the sum of changes read and written (16 d). The tables of this
data fit a cache, so this is what would move if they did not.
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import drawn_samples
from fedmf_client import BATCH, DIM, EPOCHS, ClientModel, train_client
from per_client_loop import Cost, Work, compare, plan_of, tensors_of

from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState


def plain_round(users: UserSplit, shared: SharedState, private: PrivateState) -> torch.Tensor:
    """Train every client on its own, one after the other, and average the changes."""
    rng = np.random.default_rng(0)
    items = tensors_of(shared)["item_embedding"]
    vectors = tensors_of(private)["user_embedding"]
    change, counts = torch.zeros_like(items), torch.zeros(len(items))
    for index in range(len(users)):
        item, label = drawn_samples(users.train_of(index), len(items), rng)
        model = ClientModel(vectors[index], items)
        train_client(model, item, label)
        vectors[index] = model.user.detach()
        change += model.items.weight.detach() - items
        counts[torch.from_numpy(np.unique(item))] += 1
    return items + change / counts.clamp(min=1)[:, None]


def least(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    return Cost(flops=6.0 * DIM * work.samples, bytes=20.0 * DIM * work.pairs)


def main() -> None:
    """Print both sides' round times and their ratio."""
    algorithm: dict[str, object] = {"dim": DIM, "local_epochs": EPOCHS, "batch_size": BATCH}
    plans = {"dense": plan_of(algorithm), "colr": plan_of(algorithm, structure="colr", rank=8)}
    compare("FedMF, dim 32", plans, plain_round, least, document=__doc__)


if __name__ == "__main__":
    main()
