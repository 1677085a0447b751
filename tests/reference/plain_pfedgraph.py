"""pFedGraph one user at a time in float64: torch's Adam, and a quadratic program by bisection."""

import math

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits


def visit(p, table, anchor, batches, *, rate, weight, sign):
    """Return the user's vector, its whole table and the mean loss after a visit."""
    p, table = p.clone().requires_grad_(), table.clone().requires_grad_()
    moving = torch.optim.Adam([p, table], lr=rate)
    total, n_samples = 0.0, sum(map(len, batches))
    for batch in batches:
        where = torch.tensor([item for item, _ in batch])
        label = torch.tensor([label for _, label in batch], dtype=torch.float64)
        loss = binary_cross_entropy_with_logits(table[where] @ p, label)
        total += float(loss.detach()) * len(batch) / n_samples
        moving.zero_grad()
        (loss + sign * weight * (anchor * table).sum() / torch.linalg.norm(table)).backward()
        moving.step()
    return p.detach(), table.detach(), total


def mixtures(tables, first, n_samples, smoothing):
    """Return every user's mixture of tables, and of their directions."""
    changes = [(table - first).reshape(-1) for table in tables]
    found, anchors = [], []
    for one in changes:
        goal = []
        for other, samples in zip(changes, n_samples, strict=True):
            lengths = math.sqrt(float(one @ one) * float(other @ other))
            cosine = float(one @ other) / lengths if lengths else 0.0
            distance = -1.0 if cosine > 0.9 or one is other else -cosine
            goal.append(samples / sum(n_samples) - distance / (2 * smoothing))
        low, high = min(goal) - 1.0, max(goal)
        for _ in range(200):
            middle = (low + high) / 2
            inside = sum(max(value - middle, 0.0) for value in goal) > 1.0
            low, high = (middle, high) if inside else (low, middle)
        weights = [max(value - low, 0.0) for value in goal]
        found.append(sum(w * table for w, table in zip(weights, tables, strict=True)))
        anchors.append(sum(
            w * table / np.linalg.norm(table) for w, table in zip(weights, tables, strict=True)
        ))  # fmt: skip
    return found, anchors
