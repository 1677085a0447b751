"""GPFedRec one user at a time in float64: whole tables, autograd, and a server of loops."""

import math

import torch
from reference.plain_fedncf import logits_of
from torch.nn.functional import binary_cross_entropy_with_logits


def visit(own, table, received, batches, *, rate, user_rate, item_rate, pull):
    """Return the user's vector and network, its whole table and the mean loss after a visit."""
    v = {name: value.clone() for name, value in own.items()} | {"table": table.clone()}
    rates = dict.fromkeys(v, rate) | {"user_embedding": user_rate, "table": item_rate}
    total, n_samples = 0.0, sum(map(len, batches))
    for batch in batches:
        v = {name: value.detach().requires_grad_() for name, value in v.items()}
        where = torch.tensor([item for item, _ in batch])
        label = torch.tensor([label for _, label in batch], dtype=torch.float64)
        logits = logits_of(v["user_embedding"], v["table"][where], v)
        loss = binary_cross_entropy_with_logits(logits, label)
        (loss + pull * ((v["table"] - received) ** 2).mean()).backward()
        total += float(loss.detach()) * len(batch) / n_samples
        with torch.no_grad():
            v = {name: value - rates[name] * value.grad for name, value in v.items()}
    table = v.pop("table")
    return v, table, logits_of(v["user_embedding"], table, v), total


def smoothed(tables, *, threshold=1.0, neighbours=0, layers=1, distance=False):
    """Return every user's table after the server, and the global one."""
    n = len(tables)
    similar = [[cosine(tables[u], tables[v]) for v in range(n)] for u in range(n)]
    if distance:
        similar = [[1.0 - value for value in row] for row in similar]
    mean = sum(map(sum, similar)) / n**2
    chosen = []
    for u, row in enumerate(similar):
        order = sorted(range(n), key=lambda v, row=row: (-row[v], v))
        near = (
            order[:neighbours] if neighbours else [v for v in range(n) if row[v] > threshold * mean]
        )
        chosen.append(near or [u])
    for _ in range(layers):
        tables = [sum(tables[v] for v in near) / len(near) for near in chosen]
    return tables, sum(tables) / n


def cosine(one, other):
    lengths = math.sqrt(float((one * one).sum()) * float((other * other).sum()))
    return float((one * other).sum()) / lengths if lengths else 0.0
