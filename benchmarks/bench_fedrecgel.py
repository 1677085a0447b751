"""A training round of FedRecGEL on ML-100K: fedrec's trainer against a tight loop over users.

Both sides do the same work: f 32, layers of 128, 64 and 32 units, all 943 users, 4 negatives drawn
for each positive, the sum of the mean losses of chunks of 128, three passes, Adam of each user and
of the server. The loop has no nn.Module, DataLoader or optimizer: every user's samples go through
the network at once, weighted by their chunks, a shuffle decides who is in the last one, autograd
gives the three gradients, that of the whole item table among them, and both Adams are written out.

Least arithmetic, for each pair of user and item: a layer of a inputs and c outputs takes 2 a c
forwards and twice that backwards. The first two passes take 6 M each and the third 2 M forwards and
2 N backwards, with M = 128 128 + 128 64 + 64 32 + 64 and N = 128 64 + 64 32 + 64, where the
user's half of the first layer, the same for all items, is left out. Least traffic, for each pair:
its row read (4 x 160 bytes), and the sum of gradients read and written (16 x 160).
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import drawn_samples
from per_client_loop import Cost, Work, compare, plan_of, tensors_of
from torch.nn.functional import linear, softplus

from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState

DIM, LAYERS, CHUNK, RADIUS, RATE, USER_RATE = 32, 3, 128, 0.02, 0.001, 0.1
MEAN_KEPT, SQUARE_KEPT, SMALL = 0.9, 0.999, 1e-8

Tensors = dict[str, torch.Tensor]
Samples = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Items, labels and weights."""


def logits(user: torch.Tensor, rows: torch.Tensor, net: Tensors) -> torch.Tensor:
    """Return NeuMF's scores of a user's rows."""
    units = torch.cat([user[DIM:].expand(len(rows), -1), rows[:, DIM:]], dim=1)
    for layer in range(1, LAYERS + 1):
        units = torch.relu(linear(units, net[f"weight_{layer}"], net[f"bias_{layer}"]))
    both = torch.cat([user[:DIM] * rows[:, :DIM], units], dim=1)
    return linear(both, net[f"weight_{LAYERS + 1}"], net[f"bias_{LAYERS + 1}"])[:, 0]


def gradients(
    user: torch.Tensor, table: torch.Tensor, net: Tensors, samples: Samples,
    *, of_user: bool, of_shared: bool,
) -> list[torch.Tensor]:  # fmt: skip
    """Return the gradients of the sum of chunk means: the user's, the table's, the network's."""
    item, label, weight = samples
    user = user.detach().requires_grad_(of_user)
    table = table.detach().requires_grad_(of_shared)
    net = {name: values.detach().requires_grad_(of_shared) for name, values in net.items()}
    score = logits(user, table.index_select(0, item), net)
    loss = ((softplus(score) - score * label) * weight).sum()
    wanted = ([user] if of_user else []) + ([table, *net.values()] if of_shared else [])
    return list(torch.autograd.grad(loss, wanted))


def uphill(values: list[torch.Tensor], found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return values a step of length RADIUS up their gradients."""
    norm = torch.stack([gradient.square().sum() for gradient in found]).sum().sqrt()
    pairs = zip(values, found, strict=True)
    return [value + gradient * (RADIUS / (norm + 1e-12)) for value, gradient in pairs]


def train_user(
    user: torch.Tensor, table: torch.Tensor, net: Tensors, samples: Samples
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the user's sharpness-aware gradient, and those of the table and of the network."""
    own, *shared = gradients(user, table, net, samples, of_user=True, of_shared=True)
    there, *others = uphill([table, *net.values()], shared)
    up = dict(zip(net, others, strict=True))
    sent = gradients(user, there, up, samples, of_user=False, of_shared=True)
    (moved,) = uphill([user], [own])
    (mine,) = gradients(moved, table, net, samples, of_user=True, of_shared=False)
    return mine, sent


def adam(
    value: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor,
    rate: float,
) -> torch.Tensor:  # fmt: skip
    """Return a value after Adam's first step; moments are written in place."""
    mean.lerp_(gradient, 1.0 - MEAN_KEPT)
    square.mul_(SQUARE_KEPT).addcmul_(gradient, gradient, value=1.0 - SQUARE_KEPT)
    below = (square / (1.0 - SQUARE_KEPT)).sqrt_().add_(SMALL)
    return value.addcdiv(mean, below, value=-rate / (1.0 - MEAN_KEPT))


def plain_round(users: UserSplit, shared: SharedState, private: PrivateState) -> Tensors:
    """Train every user on its own, one after the other, and take the server's step."""
    rng = np.random.default_rng(0)
    start, own = tensors_of(shared), tensors_of(private)
    table = start["item_embedding"]
    net = {name: values for name, values in start.items() if name[:-1] in ("weight_", "bias_")}
    sums = {name: torch.zeros_like(start[name]) for name in ("item_embedding", *net)}
    for index in range(len(users)):
        drawn, label = drawn_samples(users.train_of(index), len(table), rng)
        n_last = (len(drawn) - 1) % CHUNK + 1
        weight = torch.full((len(drawn),), 1.0 / CHUNK)
        weight[torch.from_numpy(rng.permutation(len(drawn))[:n_last])] = 1.0 / n_last
        vector = own["user_embedding"][index]
        samples = torch.from_numpy(drawn), torch.from_numpy(label), weight
        mine, sent = train_user(vector, table, net, samples)
        own["user_embedding"][index] = adam(
            vector, mine, own["user_embedding_mean"][index], own["user_embedding_square"][index],
            USER_RATE,
        )  # fmt: skip
        for total, gradient in zip(sums.values(), sent, strict=True):
            total += gradient
    return {
        name: adam(
            start[name], total / len(users), start[f"{name}_mean"], start[f"{name}_square"], RATE
        )
        for name, total in sums.items()
    }


def least(work: Work) -> Cost:
    """Return the least work of a round; the module's docstring derives it."""
    behind = 128 * 64 + 64 * 32 + 64
    layers = 128 * 128 + behind
    return Cost(flops=(14.0 * layers + 2.0 * behind) * work.pairs, bytes=20.0 * 160 * work.pairs)


def main() -> None:
    """Print both sides' round times and their ratio."""
    algorithm: dict[str, object] = {
        "name": "fedrecgel",
        "dim": DIM,
        "hidden_layers": LAYERS,
        "batch_size": CHUNK,
        "radius_shared": RADIUS,
        "radius_private": RADIUS,
        "learning_rate": RATE,
        "user_learning_rate": USER_RATE,
    }
    plans = {"dense": plan_of(algorithm)}
    compare("FedRecGEL, f 32", plans, plain_round, least, document=__doc__)


if __name__ == "__main__":
    main()
