"""FedNCF one user at a time in float64, with a copy of everything and autograd's derivatives."""

import torch
from reference.plain_fedmf import batches_of, samples_of
from torch.nn.functional import binary_cross_entropy_with_logits, linear


def logits_of(p, items, net, margins=None):
    """Return the scores; append to `margins` how close an input of each layer's ReLU is to 0."""
    units = torch.cat([p.expand(len(items), -1), items], dim=1)
    for layer in (1, 2, 3):
        inputs = linear(units, net[f"weight_{layer}"], net[f"bias_{layer}"])
        if margins is not None:
            margins.append(float(inputs.detach().abs().min()))
        units = torch.relu(inputs)
    return linear(units, net["weight_4"], net["bias_4"])[:, 0]


def minibatch(p, table, net, batch, rate, user_rate, item_rate, margins=None):
    """One simultaneous step by the gradient of the mean loss."""
    p, table = p.clone().requires_grad_(), table.clone().requires_grad_()
    net = {name: value.clone().requires_grad_() for name, value in net.items()}
    where = torch.tensor([item for item, _ in batch])
    label = torch.tensor([label for _, label in batch], dtype=torch.float64)
    logits = logits_of(p, table[where], net, margins)
    binary_cross_entropy_with_logits(logits, label).backward()
    with torch.no_grad():
        moved = {name: value - rate * value.grad for name, value in net.items()}
        return p - user_rate * p.grad, table - item_rate * table.grad, moved


def train_user(
    p, table, net, user, positives, excluded, *, seed, round_id, per_positive, epochs, batch_size,
    rate, user_rate, item_rate, margins=None,
):  # fmt: skip
    """Return the user's (p, table, network) after a visit, and the items that it touched."""
    samples = samples_of(seed, round_id, user, positives, excluded, len(table), per_positive)
    for epoch in range(epochs):
        for batch in batches_of(seed, round_id, epoch, user, samples, batch_size):
            p, table, net = minibatch(p, table, net, batch, rate, user_rate, item_rate, margins)
    return p, table, net, sorted({item for item, _ in samples})


def train_user_with(
    optimiser, rates, decay, p, table, net, user, positives, excluded, *, seed, round_id,
    per_positive, epochs, batch_size,
):  # fmt: skip
    """Do the same with an optimiser of torch over the whole table, whose other rows have gradient
    zero; `rates` are those of the network, p and the table.
    """
    p, table = p.clone().requires_grad_(), table.clone().requires_grad_()
    net = {name: value.clone().requires_grad_() for name, value in net.items()}
    groups = [[*net.values()], [p], [table]]
    moving = optimiser(
        [{"params": group, "lr": rate} for group, rate in zip(groups, rates, strict=True)],
        weight_decay=decay,
    )
    samples = samples_of(seed, round_id, user, positives, excluded, len(table), per_positive)
    for epoch in range(epochs):
        for batch in batches_of(seed, round_id, epoch, user, samples, batch_size):
            where = torch.tensor([item for item, _ in batch])
            label = torch.tensor([label for _, label in batch], dtype=torch.float64)
            moving.zero_grad()
            binary_cross_entropy_with_logits(logits_of(p, table[where], net), label).backward()
            moving.step()
    touched = sorted({item for item, _ in samples})
    return p.detach(), table.detach(), {k: v.detach() for k, v in net.items()}, touched
