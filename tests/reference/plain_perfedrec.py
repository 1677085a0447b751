"""PerFedRec one user at a time in float64: every pair and every edge in loops."""

import torch


def convolved(p, rows, positives, released):
    """Return the vector and a dictionary of rows after three layers over the user's edges."""
    layers = [(p, dict(rows))]
    for _ in range(3):
        before, around = layers[0 if released else -1]
        vector = (before + sum(around[i] for i in positives)) / (1 + len(positives))
        items = {i: (q + before) / 2 if i in positives else q for i, q in around.items()}
        layers.append((vector, items))
    mean = {i: sum(items[i] for _, items in layers) / 4 for i in rows}
    return sum(vector for vector, _ in layers) / 4, mean


def loss_of(p, table, batch, released):
    """Return the mean over a minibatch's pairs."""
    distinct = sorted({item for item, _ in batch})
    positives = {item for item, label in batch if label}
    vector, rows = convolved(p, {i: table[i] for i in distinct}, positives, released)
    terms = [
        torch.nn.functional.softplus(vector @ rows[j] - vector @ rows[i])
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
