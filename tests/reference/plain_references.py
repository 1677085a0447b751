"""The references written plainly: dense matrices, one item or user after the other, float64."""

from __future__ import annotations

import numpy as np
import torch


def plain_edlae(held, ridge, dropout):
    """Regress each item on all others; an item's ridge is lambda and p / (1 - p) of its count."""
    n_items = held.shape[1]
    penalty = ridge + dropout / (1 - dropout) * held.sum(0)
    weights = np.zeros((n_items, n_items))
    for item in range(n_items):
        others = np.delete(np.arange(n_items), item)
        known = held[:, others]
        system = known.T @ known + np.diag(penalty[others])
        weights[others, item] = np.linalg.solve(system, known.T @ held[:, item])
    return held @ weights


def plain_cosine(held):
    """Score by the cosine of items' columns."""
    unit = held / np.linalg.norm(held, axis=0)
    return held @ (unit.T @ unit)


def plain_rp3beta(held, neighbours, alpha, beta):
    """Walk from item to user to item; keep the best targets of each item."""
    n_users, n_items = held.shape
    of_users, of_items = held.sum(1), held.sum(0)
    weights = np.zeros((n_items, n_items))
    for start in range(n_items):
        for end in range(n_items):
            for user in range(n_users):
                if start != end and held[user, start] and held[user, end]:
                    walked = (1 / of_items[start]) ** alpha * (1 / of_users[user]) ** alpha
                    weights[start, end] += walked / of_items[end] ** beta
        weights[start, np.argsort(-weights[start])[neighbours:]] = 0.0
    return held @ weights


def plain_als_side(other, held, alpha, ridges):
    """Solve for each vector of one side exactly."""
    found = []
    for row, ridge in zip(held, ridges, strict=True):
        weight = 1.0 + alpha * row
        system = (other.T * weight) @ other + ridge * np.eye(other.shape[1])
        found.append(np.linalg.solve(system, other.T @ (weight * row)))
    return np.array(found)


def plain_lightgcn_loss(held, first, triples, layers, decay):
    """Return the mean BPR loss; torch differentiates it.

    Args:
        first: (n_users + n_items, dim).
        triples: positions in it.
    """
    n_users = len(held)
    graph = torch.zeros(len(first), len(first), dtype=first.dtype)
    for user, item in np.argwhere(held):
        share = 1 / np.sqrt(held[user].sum() * held[:, item].sum())
        graph[user, n_users + item] = graph[n_users + item, user] = share
    powers = [torch.matrix_power(graph, power) @ first for power in range(layers + 1)]
    final = torch.stack(powers).mean(0)
    loss = torch.zeros((), dtype=first.dtype)
    for user, item, other in triples.T:
        apart = final[user] @ final[item] - final[user] @ final[other]
        loss = loss + torch.nn.functional.softplus(-apart)
        loss = loss + decay / 2 * sum((first[node] ** 2).sum() for node in (user, item, other))
    return loss / triples.shape[1]
