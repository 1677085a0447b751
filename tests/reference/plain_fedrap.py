"""FedRAP one user at a time in float64: whole tables, torch's own SGD, every sample a row."""

import math

import torch
from torch.nn.functional import binary_cross_entropy_with_logits


def schedule_of(kind, number):
    """What lambda and mu are multiplied with in training round 1, 2, ..."""
    if kind == "tanh":
        return math.tanh(number / 10)
    if kind == "sin":
        return (math.sin(number / 10) + 1) / 2
    if kind == "square":
        return 0.0 if (number - 1) % 20 < 10 else 1.0
    return {"frac": 1 / (number + 1), "fixed": 1.0}[kind]


def objective(values, batch, *, tables, sparsity, apart, sparse):
    """Return the loss of a list of (item, label); `apart` and `sparse` are lambda and mu."""
    items = torch.tensor([item for item, _ in batch])
    labels = torch.tensor([label for _, label in batch], dtype=torch.float64)
    rows = [values[name][items] for name in ("item_embedding", "own_embedding") if name in values]
    scores = sum(rows) @ values["user_embedding"] + values["user_bias"]
    loss = binary_cross_entropy_with_logits(scores, labels)
    if tables != "private" and sparsity != "none":
        shared = rows[0]
        loss = loss + sparse * (shared.abs().mean() if sparsity == "l1" else (shared**2).mean())
    if tables == "both":
        loss = loss - apart * ((rows[1] - rows[0]) ** 2).mean()
    return loss


def visit(
    values,
    epochs_of_batches,
    *,
    rate,
    item_rate,
    decay,
    factor,
    tolerance,
    clip=None,
    basis=None,
    **rule,
):
    """Return (values after a visit, mean loss of all samples seen, epochs).

    Args:
        values: float64 tensors by name; tables over all items.
        basis: B of C = Q + A B, of which A alone is stepped; None for all of C.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    if basis is not None:
        leaves["low"] = torch.zeros(
            (len(leaves.pop("item_embedding")), len(basis)), dtype=torch.float64
        )
        leaves["low"].requires_grad_()

    def meant():
        if basis is None:
            return leaves
        return leaves | {"item_embedding": values["item_embedding"] + leaves["low"] @ basis}

    groups = [
        {"params": [leaf], "lr": item_rate if name.endswith("_embedding") and leaf.dim() == 2
         else rate}
        for name, leaf in leaves.items()
    ]  # fmt: skip
    if basis is not None:
        # Decay is of C, and its gradient goes through B like any other.
        scale = math.sqrt(len(basis) / basis.shape[1])
        groups[-1] |= {"lr": item_rate * scale, "weight_decay": 0.0}
    optimiser = torch.optim.SGD(groups, lr=rate, weight_decay=decay)
    slower = torch.optim.lr_scheduler.ExponentialLR(optimiser, factor)
    total, seen, last, n_epochs = 0.0, 0, None, 0
    for batches in epochs_of_batches:
        for batch in batches:
            optimiser.zero_grad()
            loss = objective(meant(), batch, **rule)
            loss.backward()
            if basis is not None:
                (decay / 2 * meant()["item_embedding"].square().sum()).backward()
            if clip is not None:
                gradient = leaves["item_embedding"].grad
                gradient *= min(1.0, clip / float(torch.linalg.norm(gradient)))
            optimiser.step()
            slower.step()
            total, seen = total + float(loss.detach()) * len(batch), seen + len(batch)
        n_epochs += 1
        mean = total / seen
        if last is not None and abs(mean - last) < tolerance * abs(last):
            break
        last = mean
    return {name: leaf.detach() for name, leaf in meant().items()}, total / seen, n_epochs
