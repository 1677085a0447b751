"""CoFedRec one user at a time in float64: whole tables, every pair of items in loops."""

import math

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, normalize


def contrast(rows, labels, temperature):
    """Of a minibatch's distinct items; a negative label is none."""
    n, z, total = len(rows), normalize(rows), 0.0
    for i in range(n):
        others = [a for a in range(n) if a != i]
        same = [p for p in others if labels[p] == labels[i] >= 0]
        if same:
            below = torch.logsumexp(torch.stack([z[i] @ z[a] / temperature for a in others]), 0)
            terms = sum(z[i] @ z[p] / temperature - below for p in same)
            total = total - temperature / 0.5 * terms / (len(same) + 1e-6)
    return total / n if n > 1 else torch.zeros((), dtype=rows.dtype)


def visit(own, table, labels, batches, *, rate, item_rate, weight, temperature):
    """Return the user's head, bias and whole table, and the mean loss after a visit."""
    w, c, q = own["user_embedding"].clone(), own["user_bias"].clone(), table.clone()
    total, n_samples = 0.0, sum(map(len, batches))
    for batch in batches:
        where = torch.tensor([item for item, _ in batch])
        label = torch.tensor([label for _, label in batch], dtype=torch.float64)
        w, c = w.detach().requires_grad_(), c.detach().requires_grad_()
        loss = binary_cross_entropy_with_logits(q[where] @ w + c, label)
        total += float(loss.detach()) * len(batch) / n_samples
        loss.backward()
        w, c = w.detach() - rate * w.grad, c.detach() - rate * c.grad
        q = q.detach().requires_grad_()
        distinct = torch.unique(where)
        whole = binary_cross_entropy_with_logits(q[where] @ w + c, label)
        whole = whole + weight * contrast(q[distinct], labels[distinct], temperature)
        whole.backward()
        q = q.detach() - item_rate * q.grad
    return {"user_embedding": w, "user_bias": c}, q, total


def elbow(falling):
    """Return the first index that is furthest from the line from the first point to the last."""
    n, first, last = len(falling), falling[0], falling[-1]
    length = math.hypot(n - 1, first - last)
    apart = [
        abs((first - last) * x + (n - 1) * (y - first)) / length if length else 0.0
        for x, y in enumerate(falling)
    ]
    return apart.index(max(apart))


def members(tables, star, items):
    """Return the group that is merged with user `star` by the rows of some items."""

    def cosine(one, other):
        lengths = np.linalg.norm(one) * np.linalg.norm(other)
        return float(one @ other) / lengths if lengths else 0.0

    alike = [sum(cosine(tables[star][i], own[i]) for i in items) for own in tables]
    order = sorted(range(len(tables)), key=lambda u: (u != star, -alike[u], u))
    return order[: elbow([alike[u] for u in order]) + 1]
