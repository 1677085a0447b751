"""The toys' users one at a time in float64: whole tables, every sample a row, autograd.

A visit gets `values` (tensors by name; rows over all items) and the user's samples; `objective`
returns (loss, penalty) of a list of samples, means over them.
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

ROWS = {"item_embedding", "own_item", "item_bias", "own_rows"}


def gradients_of(objective, values, names, batch):
    leaves = {name: values[name].clone().requires_grad_() for name in names}
    loss, penalty = objective(values | leaves, *batch)
    found = torch.autograd.grad(loss + penalty, list(leaves.values()))
    return float(loss.detach()), dict(zip(names, found, strict=True))


def tensors_of(batch):
    items = torch.tensor([item for item, _ in batch])
    return items, torch.tensor([label for _, label in batch], dtype=torch.float64)


def sgd_visit(values, epochs_of_batches, objective, rates, *, radius=0.0, per_occurrence=False):
    """Return the values after a visit."""
    values, names = dict(values), list(rates)
    for samples in (samples for batches in epochs_of_batches for samples in batches):
        batch = tensors_of(samples)
        _, gradients = gradients_of(objective, values, names, batch)
        if radius:
            norm = torch.sqrt(sum((g**2).sum() for g in gradients.values()))
            uphill = {name: values[name] + radius * gradients[name] / norm for name in names}
            _, gradients = gradients_of(objective, values | uphill, names, batch)
        for name in names:
            gradient = gradients[name]
            if per_occurrence and name in ROWS:
                times = torch.bincount(batch[0], minlength=len(gradient)).clamp(min=1)
                gradient = gradient * len(samples) / times[:, None]
            values[name] = values[name] - rates[name] * gradient
    return values


def adam_visit(values, epochs_of_batches, objective, rate, names):
    """Do the same with torch's Adam over whole tables."""
    values = dict(values)
    leaves = {name: values[name].clone().requires_grad_() for name in names}
    optimiser = torch.optim.Adam(list(leaves.values()), lr=rate)
    for batches in epochs_of_batches:
        for samples in batches:
            optimiser.zero_grad()
            loss, penalty = objective(values | leaves, *tensors_of(samples))
            (loss + penalty).backward()
            optimiser.step()
    return values | {name: leaf.detach() for name, leaf in leaves.items()}


def sharpness(v, items, labels):
    scores = v["item_embedding"][items] @ v["user_embedding"] + v["user_bias"]
    return cross_entropy(scores, labels), 0.0


def wrapper(gamma):
    def objective(v, items, labels):
        rows = v["item_embedding"][items] + v["own_item"][items]
        loss = cross_entropy(rows @ v["user_embedding"], labels)
        pull = (rows**2).sum() / len(items) + (v["user_embedding"] ** 2).sum()
        return loss, gamma * pull

    return objective


def schedule(pace):
    def objective(v, items, labels):
        rows = v["item_embedding"][items]
        pull = 0.01 * pace * (rows**2).sum() / len(items)
        return cross_entropy(rows @ v["user_embedding"], labels), pull

    return objective


def several(v, items, labels):
    rows = v["item_embedding"][items]
    for half in (0, 1):
        rows = rows + v["own_rows"][items, half] * v["scale"][half]
    scores = rows @ v["user_embedding"] + v["item_bias"][items] + v["bias"]
    return cross_entropy(scores, labels), 0.0
