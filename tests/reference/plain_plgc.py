"""PLGC one user at a time in float64: whole tables, every sample a row, autograd.

A user's state has `C` (None before its first round), the base's own tensors and its network.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from reference.plain_fedmf import batches_of, samples_of
from reference.plain_fedncf import logits_of
from reference.plain_perfedrec import loss_of
from torch.nn.functional import batch_norm, linear, normalize
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

NETWORK = ("projector_first", "norm_scale", "norm_shift", "projector_second", "predictor",
           "predictor_bias")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A base, its rates, and what is around it.

    Attributes:
        steps: names that move together, one group after the other; "C" is the item table.
    """

    base: str
    steps: tuple[tuple[str, ...], ...]
    rates: dict[str, float]
    epochs: int
    batch_size: int
    gamma: float = 0.0
    per_occurrence: bool = False
    mixing: bool = True
    regulariser: str = "err"
    weight: float = 0.0
    off: float = 0.01
    temperature: float = 0.2
    factor: float = 0.95


def score(base, v, q):
    if base == "fedncf":
        net = {name: value for name, value in v.items() if name[-2:] in ("_1", "_2", "_3", "_4")}
        return logits_of(v["user_embedding"], q, net)
    found = q @ v["user_embedding"]
    return found + v["user_bias"] if base == "pfedrec" else found


def view(v, rows):
    if "predictor" not in v:
        return rows
    # torch's own modules take weights (outputs, inputs).
    units = linear(rows, v["projector_first"].T)
    units = batch_norm(units, None, None, v["norm_scale"], v["norm_shift"], training=True)
    units = linear(torch.relu(units), v["projector_second"].T)
    return linear(units, v["predictor"].T, v["predictor_bias"])


def regulariser(rule, v, c, g):
    """Of a minibatch's distinct items: rows c of the own table and g of the version."""
    n, d = c.shape
    if n < 2:
        return torch.zeros((), dtype=c.dtype)
    if rule.regulariser == "err":
        zc, zg = view(v, c), view(v, g)
        total = 0.0
        for i in range(d):
            for j in range(d):
                length = torch.linalg.norm(zc[:, i]) * torch.linalg.norm(zg[:, j]) + 1e-8
                h = zc[:, i] @ zg[:, j] / length
                total = total + ((1 - h) ** 2 if i == j else rule.off * h**2)
        return total / d
    if rule.regulariser == "feddecorr":
        standard = batch_norm(c, None, None, training=True)
        return ((standard.T @ standard / n) ** 2).sum() / d**2
    one, other = normalize(c), normalize(g)
    if rule.regulariser == "au":
        apart = ((one - other) ** 2).sum(1).mean()
        spread = [
            torch.exp(-2 * ((one[i] - one[j]) ** 2).sum())
            for i in range(n) for j in range(n) if i != j
        ]  # fmt: skip
        return apart + rule.off * torch.stack(spread).mean().log()
    total = 0.0
    for i in range(n):
        right = one[i] @ other[i] / rule.temperature
        wrong = [row @ one[i] / rule.temperature
                 for j in range(n) if j != i for row in (one[j], other[j])]  # fmt: skip
        total = total + torch.logsumexp(torch.stack([right, *wrong]), 0) - right
    return total / n


def gradients(rule, v, names, g, share, batch):
    items = torch.tensor([item for item, _ in batch])
    labels = torch.tensor([label for _, label in batch], dtype=torch.float64)
    leaves = {name: v[name].clone().requires_grad_() for name in names}
    now = v | leaves
    q = share * now["C"][items] + (1 - share) * g[items]
    mean = cross_entropy(score(rule.base, now, q), labels)
    if rule.gamma:
        pull = (q**2).sum() / len(items) + (now["user_embedding"] ** 2).sum()
        mean = mean + rule.gamma * pull
    found = torch.autograd.grad(mean, list(leaves.values()), allow_unused=True)
    found = {n: torch.zeros_like(v[n]) if own is None else own
             for n, own in zip(names, found, strict=True)}  # fmt: skip
    if rule.per_occurrence and "C" in names:
        times = torch.bincount(items, minlength=len(g)).clamp(min=1)
        found["C"] = found["C"] * len(batch) / times[:, None]
    if rule.weight:
        distinct = torch.unique(items)
        beside = rule.weight * regulariser(rule, now, now["C"][distinct], g[distinct])
        if beside.requires_grad:
            more = torch.autograd.grad(beside, list(leaves.values()), allow_unused=True)
            for name, own in zip(names, more, strict=True):
                found[name] = found[name] + (0.0 if own is None else own)
    return found


def visit(rule, own, net, g, user, positives, *, seed, round_id):
    """Return the user's state after a visit, the shared network as it left it, and its scores."""
    own = dict(own)
    if own["C"] is None or not rule.mixing:
        own["C"] = g.clone()
    v, n_steps = own | net, 0
    samples = samples_of(seed, round_id, user, positives, positives, len(g), 4)
    for epoch in range(rule.epochs):
        share = shares(rule, v["C"], g)
        for batch in batches_of(seed, round_id, epoch, user, samples, rule.batch_size):
            for names in rule.steps:
                for name, gradient in gradients(rule, v, names, g, share, batch).items():
                    v[name] = v[name] - rule.rates[name] * rule.factor**n_steps * gradient
            n_steps += 1
    share = shares(rule, v["C"], g)
    scores = score(rule.base, v, share * v["C"] + (1 - share) * g)
    return {name: v[name] for name in own}, {name: v[name] for name in net}, scores


def shares(rule, c, g):
    if not rule.mixing:
        return 1.0
    return float((c**2).sum() / ((c**2).sum() + (g**2).sum()))


def added_visit(values, epochs_of_batches, *, rate, item_rate, decay, factor, apart, sparse, rule):
    """FedRAP's visit with the mixture in place of the sum of both tables, by torch's own SGD.

    Args:
        values: `own_embedding` (the version itself in a user's first round), `item_embedding`,
            `user_embedding` and `user_bias`, float64.

    Returns:
        The values after it, and the scores of all items.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    own, version = leaves["own_embedding"], leaves["item_embedding"]
    groups = [{"params": [own, version], "lr": item_rate},
              {"params": [leaves["user_embedding"], leaves["user_bias"]], "lr": rate}]  # fmt: skip
    optimiser = torch.optim.SGD(groups, lr=rate, weight_decay=decay)
    slower = torch.optim.lr_scheduler.ExponentialLR(optimiser, factor)
    for batches in epochs_of_batches:
        share = shares(rule, own.detach(), version.detach())
        for batch in batches:
            items = torch.tensor([item for item, _ in batch])
            labels = torch.tensor([label for _, label in batch], dtype=torch.float64)
            mixed = share * own[items] + (1 - share) * version[items]
            loss = cross_entropy(mixed @ leaves["user_embedding"] + leaves["user_bias"], labels)
            loss = loss + sparse * version[items].abs().mean()
            loss = loss - apart * ((own[items] - version[items]) ** 2).mean()
            distinct = torch.unique(items)
            beside = regulariser(rule, {}, own[distinct], version[distinct].detach())
            optimiser.zero_grad()
            (loss + rule.weight * beside).backward()
            optimiser.step()
            slower.step()
    share = shares(rule, own.detach(), version.detach())
    after = {name: leaf.detach() for name, leaf in leaves.items()}
    rows = share * after["own_embedding"] + (1 - share) * after["item_embedding"]
    return after, rows @ after["user_embedding"] + after["user_bias"]


def pulled_visit(own, g, epochs_of_batches, *, rates, pull, rule):
    """GPFedRec's visit with Q in place of its table, and the distance of C to the received one.

    Args:
        own: `C`, `user_embedding`, the base's network, and that of the regulariser, float64.
        g: the table that the user received.

    Returns:
        The values after it, and the scores of all items.
    """
    v, n_steps = dict(own), 0
    for batches in epochs_of_batches:
        share = shares(rule, v["C"], g)
        for batch in batches:
            v = {name: value.detach().requires_grad_() for name, value in v.items()}
            items = torch.tensor([item for item, _ in batch])
            labels = torch.tensor([label for _, label in batch], dtype=torch.float64)
            q = share * v["C"][items] + (1 - share) * g[items]
            loss = cross_entropy(logits_of(v["user_embedding"], q, v), labels)
            loss = loss + pull * ((v["C"] - g) ** 2).mean() + regularised(rule, v, items, g)
            loss.backward()
            pace = rule.factor**n_steps
            with torch.no_grad():
                for name in [name for name, value in v.items() if value.grad is not None]:
                    v[name] = v[name] - rates[name] * pace * v[name].grad
            n_steps += 1
    v = {name: value.detach() for name, value in v.items()}
    share = shares(rule, v["C"], g)
    return v, logits_of(v["user_embedding"], share * v["C"] + (1 - share) * g, v)


def clustered_visit(own, g, cluster, epochs_of_batches, *, rates, released, rule):
    """PerFedRec's visit with Q in place of the user's own table.

    Args:
        own: `C`, `user_embedding` and the network of the regulariser, float64.
        g: the mean of all users' tables.
        cluster: the mean table of the user's cluster.
    """
    v = {name: value.clone().requires_grad_() for name, value in own.items()}
    moving = torch.optim.Adam([{"params": [v[name]], "lr": rates[name]} for name in v])
    for batches in epochs_of_batches:
        share = shares(rule, v["C"].detach(), g)
        for batch in batches:
            items = torch.tensor([item for item, _ in batch])
            loss = loss_of(v["user_embedding"], share * v["C"] + (1 - share) * g, batch, released)
            moving.zero_grad()
            (loss + regularised(rule, v, items, g)).backward()
            moving.step()
    v = {name: value.detach() for name, value in v.items()}
    share = shares(rule, v["C"], g)
    three = share * v["C"] + (1 - share) * g + cluster + g
    return v, three @ v["user_embedding"] / 3


def regularised(rule, v, items, g):
    distinct = torch.unique(items)
    return rule.weight * regulariser(rule, v, v["C"][distinct], g[distinct]) if rule.weight else 0.0
