"""PerFedRec one user at a time in float64: every pair and every edge in loops."""

import torch


def convolved(p, rows, released):
    """Return the vector after three layers over the user's edges to its positives' rows."""
    layers = [p]
    for _ in range(3):
        layers.append((layers[0 if released else -1] + sum(rows)) / (1 + len(rows)))
    return sum(layers) / 4


def loss_of(p, table, batch, released):
    """Return the mean over a minibatch's pairs."""
    vector = convolved(p, [table[i] for i in sorted({i for i, one in batch if one})], released)
    terms = [
        torch.nn.functional.softplus(vector @ table[j] - vector @ table[i])
        for i, one in batch
        for j, other in batch
        if one and not other
    ]
    return sum(terms) / len(terms) if terms else 0.0 * p.sum() + 0.0 * table.sum()


def visit(p, table, batches, *, rate, released):
    """Return the user's vector, its whole table and the mean loss, by torch's Adam."""
    p, table = p.clone().requires_grad_(), table.clone().requires_grad_()
    moving = torch.optim.Adam([p, table], lr=rate)
    total, n_samples = 0.0, sum(map(len, batches))
    for batch in batches:
        loss = loss_of(p, table, batch, released)
        total += float(loss.detach()) * len(batch) / n_samples
        moving.zero_grad()
        loss.backward()
        moving.step()
    return p.detach(), table.detach(), total
