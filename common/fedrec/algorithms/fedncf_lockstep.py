"""FedNCF's local training: the networks of all users of a chunk side by side, no autograd.

Letters as in back-propagation: units h_1 (32), h_2 (16), h_3 (8), their inputs' derivatives d_1,
d_2, d_3, and e = (sigmoid(s) - y) / b for the score. Minibatches are padded to one size and sizes
of products to multiples of 8, so that a user's bits do not depend on who trains beside it. On a
processor that holds for whole rounds; a GPU adds the derivatives of an item that a minibatch holds
more than once in no fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import RoundStart
from fedrec.training.grid import GridSum
from fedrec.training.optimisers import SGD, Adam, LazyRows, RowOptimiser, SteppedRows
from fedrec.training.samplers import Samples, Step

if TYPE_CHECKING:
    from fedrec.algorithms.fedncf import FedNCF

__all__ = ["NetworkLockstep"]

_PAIRS_AT_ONCE = 16_384


class NetworkLockstep:
    """The state of a chunk between minibatches.

    Attributes:
        loss: summed over the samples so far, before the steps that they lead to, (n_users,).
    """

    def __init__(
        self, algorithm: FedNCF, start: RoundStart, users: torch.Tensor, samples: Samples
    ) -> None:
        n_users, self._dim = users.shape
        padded = _padded(self._dim)
        self._samples = samples
        self._start = start
        places = torch.arange(_padded(algorithm.settings.batch_size), device=users.device)
        self._places = places
        # A chunk of one takes other kernels: it is trained twice, and the copy thrown away.
        self._copies = max(2, n_users)
        self._n_users = n_users
        self._users = _wide(users, padded).expand(self._copies, -1).clone()
        table = users.new_zeros((len(start.shared["item_embedding"]) + 1, padded))
        table[:-1, : self._dim] = start.shared["item_embedding"]
        self._table = table
        self._rows = table.index_select(0, samples.pair_item.reshape(-1))
        self._network = {
            name: start.shared[name].expand(self._copies, *shape).clone()
            for name, shape in algorithm.network.items()
            if name != "weight_1"
        }
        first = start.shared["weight_1"]
        for name, part in (("of_user", first[:, : self._dim]), ("of_item", first[:, self._dim :])):
            self._network[name] = _wide(part, padded).expand(self._copies, -1, -1).clone()
        self.loss = users.new_zeros(n_users)
        self._choose_optimisers(algorithm)

    def _choose_optimisers(self, algorithm: FedNCF) -> None:
        settings = algorithm.settings
        decay = settings.weight_decay
        kind = {"sgd": SGD, "adam": Adam}[settings.optimiser]
        self._for_network = {name: kind(settings.learning_rate, decay) for name in self._network}
        self._for_users = kind(algorithm.user_rate, decay)
        of_rows = kind(algorithm.item_rate, decay)
        self._for_rows: RowOptimiser = (
            LazyRows(self._n_users, self._samples.width, self._rows.device, of_rows)
            if isinstance(of_rows, SGD)
            else SteppedRows(self._n_users, of_rows)
        )

    @property
    def users(self) -> torch.Tensor:
        """p, float32 (n_users, dim)."""
        return self._users[: self._n_users, : self._dim].contiguous()

    def take(self, step: Step) -> None:
        """Do one simultaneous step of every user who has a minibatch left."""
        place, sizes = self._places, step.sizes
        begin = torch.cumsum(sizes, 0) - sizes
        where = (begin[:, None] + place).clamp(max=len(step.samples) - 1)
        chosen = step.samples.index_select(0, where.view(-1))
        pair = self._samples.pair.index_select(0, chosen)
        inside = place < sizes[:, None]
        # Places beyond a user's minibatch do nothing to a row of its own.
        own = torch.arange(self._n_users, device=place.device) * self._samples.width
        pair = torch.where(inside.view(-1), pair, own.repeat_interleave(len(place)))
        label = self._samples.label.index_select(0, chosen).view(inside.shape)
        items = self._for_rows.read(self._rows, pair).view(*inside.shape, -1)
        items, label, inside = self._copied(items), self._copied(label), self._copied(inside)
        logits, units = self._forward(items)
        small = torch.exp(-logits.abs())
        loss = logits.clamp(min=0) - logits * label + torch.log1p(small)
        self.loss += torch.where(inside, loss, 0.0)[: self._n_users].sum(1)
        error = torch.where(logits >= 0, 1.0, small) / (1.0 + small) - label
        size = self._copied(sizes.clamp(min=1)[:, None])
        taking = sizes > 0
        error = torch.where(inside, error / size, 0.0)
        by_items = self._backward(error, items, units, self._copied(taking))
        by_items = by_items[: self._n_users].reshape(-1, items.shape[-1])
        self._for_rows.step(self._rows, pair, by_items, taking)

    def _copied(self, values: torch.Tensor) -> torch.Tensor:
        return values if self._copies == self._n_users else values.expand(2, *values.shape[1:])

    def _forward(
        self, items: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Return scores (n_users, batch) and the units of the three layers."""
        net = self._network
        constant = (net["of_user"] * self._users[:, None, :]).sum(-1) + net["bias_1"]
        first = torch.relu(torch.bmm(items, net["of_item"].mT) + constant[:, None, :])
        second = torch.relu(torch.bmm(first, net["weight_2"].mT) + net["bias_2"][:, None, :])
        third = torch.relu(torch.bmm(second, net["weight_3"].mT) + net["bias_3"][:, None, :])
        scores = (third * net["weight_4"]).sum(-1) + net["bias_4"]
        return scores, (first, second, third)

    def _backward(
        self,
        error: torch.Tensor,
        items: torch.Tensor,
        units: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        taking: torch.Tensor,
    ) -> torch.Tensor:
        """Move users and networks; return the loss's derivatives by the samples' item rows."""
        net, (first, second, third) = self._network, units
        third_d = error[:, :, None] * net["weight_4"] * (third > 0)
        second_d = torch.bmm(third_d, net["weight_3"]) * (second > 0)
        first_d = torch.bmm(second_d, net["weight_2"]) * (first > 0)
        by_items = torch.bmm(first_d, net["of_item"])
        first_bias = first_d.sum(1)
        by_users = (first_bias[:, :, None] * net["of_user"]).sum(1)
        gradients = {
            "weight_4": (error[:, :, None] * third).sum(1, keepdim=True),
            "bias_4": error.sum(1, keepdim=True),
            "weight_3": torch.bmm(third_d.mT, second),
            "bias_3": third_d.sum(1),
            "weight_2": torch.bmm(second_d.mT, first),
            "bias_2": second_d.sum(1),
            "of_item": torch.bmm(first_d.mT, items),
            "of_user": first_bias[:, :, None] * self._users[:, None, :],
            "bias_1": first_bias,
        }
        for name, gradient in gradients.items():
            self._for_network[name].step(net[name], gradient, taking)
        self._for_users.step(self._users, by_users, taking)
        return by_items

    def hand_over_rows(self, total: GridSum) -> torch.Tensor:
        """Add every touched row's change to the sum; return each user's clipped values."""
        self._for_rows.finish(self._rows)
        pair_item = self._samples.pair_item
        n_users, width = pair_item.shape
        rows = self._rows.view(n_users, width, -1)
        clipped = torch.zeros_like(pair_item[:, 0])
        at_once = max(1, _PAIRS_AT_ONCE // width)
        for begin in range(0, n_users, at_once):
            part = slice(begin, begin + at_once)
            item = pair_item[part].reshape(-1)
            change = rows[part].reshape(len(item), -1) - self._table.index_select(0, item)
            over = total.add(item, change[:, : self._dim])
            clipped[part] = over.view(-1, width).sum(1)
        return clipped

    def network_changes(self) -> dict[str, torch.Tensor]:
        """Return how far each user's network has moved, by the names of the shared tensors."""
        own = {name: values[: self._n_users] for name, values in self._network.items()}
        halves = [own.pop(name)[:, :, : self._dim] for name in ("of_user", "of_item")]
        own["weight_1"] = torch.cat(halves, dim=2)
        return {name: values - self._start.shared[name] for name, values in own.items()}


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _wide(values: torch.Tensor, width: int) -> torch.Tensor:
    """Return the values with columns of zeros behind them."""
    wide = values.new_zeros((len(values), width))
    wide[:, : values.shape[1]] = values
    return wide
