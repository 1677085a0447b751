"""FedMF's client as most federated code writes it: a module, a DataLoader, an optimizer, autograd.

It needs numpy and torch alone, so that it also runs where fedrec is not installed.
"""

from __future__ import annotations

import numpy as np
import torch
from client_samples import batches
from torch import nn

DIM, EPOCHS, BATCH = 32, 2, 256


class ClientModel(nn.Module):
    """One client's user vector and its copy of the item table."""

    def __init__(self, user: torch.Tensor, items: torch.Tensor) -> None:
        super().__init__()
        self.user = nn.Parameter(user.clone())
        self.items = nn.Embedding.from_pretrained(items.clone(), freeze=False)

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        """Return the logits of a minibatch."""
        return self.items(item) @ self.user


def train_client(model: ClientModel, item: np.ndarray, label: np.ndarray) -> None:
    """Train one client's model on its samples, as most code does."""
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=0.5), nn.BCEWithLogitsLoss()
    for batch_item, batch_label in batches(item, label, epochs=EPOCHS, batch_size=BATCH):
        optimizer.zero_grad()
        loss_of(model(batch_item), batch_label).backward()
        optimizer.step()
