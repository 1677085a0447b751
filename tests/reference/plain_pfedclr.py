"""PFedCLR one user and one sample at a time in float64, with a whole table of its own.

Scores and losses are written out sample by sample and differentiated by autograd; the optimiser is
torch's own Adam over whole tables, one for each step of each round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from reference.plain_fedmf import batches_of, samples_of

LARGEST_WEIGHT = 4096
CALIBRATION = {
    "clr": ["item_factor", "factor"],
    "cf": ["item_calibration"],
    "af": ["item_calibration"],
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    variant: str = "clr"
    rate: float = 0.01
    personal_rate: float = 0.01
    epochs: int = 10
    batch_size: int = 256
    longest: float = 0.0
    aggregation: bool = True


@dataclass(kw_only=True)
class Round:
    """Weighed sum of the changes, sum of weights, next table, private tensors, tables, losses."""

    change: torch.Tensor
    weight: int = 0
    table: torch.Tensor = None
    private: list[dict[str, torch.Tensor]] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def calibration_of(values, variant):
    """The table that a user adds to Q, (n_items, dim)."""
    if variant == "clr":
        return values["item_factor"] @ values["factor"]
    return values["item_calibration"]


def loss_of(values, variant, batch, *, calibrated):
    """Mean cross-entropy of a list of samples."""
    table = values["item_embedding"]
    if calibrated:
        table = table + calibration_of(values, variant)
    total = 0.0
    for item, label in batch:
        chance = torch.sigmoid(table[item] @ values["user_embedding"])
        total = total - torch.log(chance if label else 1.0 - chance)
    return total / len(batch)


def step(values, rates, settings, epochs_of_batches, *, calibrated, longest=0.0):
    """One of both steps in place; return the losses of all samples."""
    leaves = {name: values[name].clone().requires_grad_() for name in rates}
    groups = [{"params": [leaf], "lr": rates[name]} for name, leaf in leaves.items()]
    optimiser = torch.optim.Adam(groups)
    seen = []
    for batches in epochs_of_batches:
        for batch in batches:
            optimiser.zero_grad()
            loss = loss_of(values | leaves, settings.variant, batch, calibrated=calibrated)
            loss.backward()
            if longest:
                table = leaves["item_embedding"]
                table.grad *= min(1.0, longest / float(torch.sqrt((table.grad**2).sum())))
            optimiser.step()
            seen += [float(loss.detach())] * len(batch)
    values.update({name: leaf.detach() for name, leaf in leaves.items()})
    return seen


def train_user(table, private, settings, epochs_of_batches):
    """Return (Q_u, what is private after it, mean loss)."""
    values = {"item_embedding": table.clone()} | dict(private)
    shared = {"item_embedding": settings.rate}
    personal = dict.fromkeys(CALIBRATION[settings.variant], settings.personal_rate)
    if settings.variant == "af":
        shared["user_embedding"] = settings.rate
    else:
        personal["user_embedding"] = settings.rate
    half = len(epochs_of_batches) // 2
    first, second = epochs_of_batches[:half], epochs_of_batches[half:]
    seen = step(values, shared, settings, first, calibrated=False, longest=settings.longest)
    seen += step(values, personal, settings, second, calibrated=True)
    own = values.pop("item_embedding")
    return own, values, sum(seen) / len(seen)


def pfedclr_round(table, private, keys, histories, settings, *, seed, round_id, n_items):
    """Return a `Round` from the table and every user's private tensors."""
    found = Round(change=torch.zeros_like(table))
    for key, positives, own in zip(keys, histories, private, strict=True):
        samples = samples_of(seed, round_id, key, positives, positives, n_items, 4)
        epochs_of_batches = [
            batches_of(seed, round_id, epoch, key, samples, settings.batch_size)
            for epoch in range(2 * settings.epochs)
        ]
        trained, after, loss = train_user(table, own, settings, epochs_of_batches)
        weight = min(len(positives), LARGEST_WEIGHT)
        found.change += weight * (trained - table)
        found.weight += weight
        found.private.append(after)
        rows = trained + calibration_of(after, settings.variant)
        found.scores.append(rows @ after["user_embedding"])
        found.losses.append(loss)
    found.table = table + found.change / found.weight if settings.aggregation else table.clone()
    return found
