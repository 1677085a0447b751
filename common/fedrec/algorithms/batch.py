"""A minibatch of many users as a loss sees it, and the building blocks of losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_NORM_SQUARES = 1e-20
"""A shorter length is treated as zero: its derivative would be infinite."""
_BATCH_NORM = 1e-5
_NEVER = -1e9


class Values:
    """A minibatch's parameters by name, and `phase`, the name of the current phase.

    `v.item_embedding` and `v["item_embedding"]` are the same.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], phase: str = "") -> None:
        self._tensors, self.phase = tensors, phase

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get(self, name: str, otherwise: torch.Tensor) -> torch.Tensor:
        """Return a value, or another one if there is none of this name."""
        return self._tensors.get(name, otherwise)

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise AttributeError(name) from None

    def having(self, tensors: Mapping[str, torch.Tensor]) -> Values:
        """Return a copy with more values, or with other values under the same names."""
        return Values({**self._tensors, **tensors}, self.phase)


@dataclass(frozen=True, slots=True)
class Batch:
    """Labels and weights of a minibatch's rows.

    Attributes:
        label: 1 for an interaction, 0 for a sampled negative, float (n_users, n_rows).
        weight: share of the user's samples, 0 without a row, float (n_users, n_rows). If a step
            covers all of a user's minibatches, it is the sum of the row's shares.
        there: 1 for a row of an item, 0 for padding, float (n_users, n_rows), if an algorithm
            steps every row. Then rows without a sample have the weight 0, too.
    """

    label: torch.Tensor
    weight: torch.Tensor
    there: torch.Tensor | None = None

    def weighted_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return each user's sum of weight x value, (n_users,), of values (n_users, n_rows).

        The weights of a minibatch sum to 1, so this is the mean over its samples. If a step covers
        all minibatches, it is the sum of their means.
        """
        return (values * self.weight).sum(1)


def cross_entropy(score: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the binary cross-entropy of sigmoid(score), elementwise."""
    import torch

    return torch.nn.functional.softplus(score) - score * label


def length(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of each user's tensors together, (n_users,)."""
    import torch

    squares = [values.square().reshape(len(values), -1).sum(1) for values in tensors.values()]
    return torch.stack(squares).sum(0).sqrt()


def wide(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return values with trailing axes of length one, so that they broadcast to `like`'s shape."""
    return values.view(*values.shape, *[1] * (like.dim() - values.dim()))


def dot(rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the inner products of users' vectors with their rows, (n_users, n_rows).

    Args:
        rows: (n_users, n_rows, dim), or (1, n_rows, dim) if all users share a table.
        vectors: (n_users, dim).
    """
    if rows.shape[0] == 1 != vectors.shape[0]:
        # Scoring all items always uses the same number of users and one thread.
        return vectors @ rows[0].T
    # A matrix product would choose its order of summation by the shape.
    return (rows * vectors[:, None]).sum(-1)


def layer_shapes(inputs: int, outputs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (outputs, inputs) of each layer. The first layer has `weight_1` and `bias_1`."""
    return tuple(zip(outputs, (inputs, *outputs), strict=False))


def units(v: Values, users: torch.Tensor, items: torch.Tensor, n_layers: int) -> torch.Tensor:
    """Return the last hidden units of [user, item], after ReLU, (n_users, n_rows, outputs).

    The first layer treats users and items separately: a user's half is the same for all its rows.

    Args:
        users: (n_users, dim).
        items: (n_users, n_rows, dim), or (1, n_rows, dim) if all users share a table.
        n_layers: hidden layers.
    """
    import torch

    from fedrec.tensor_products import user_product

    dim = users.shape[-1]
    # Autograd joins the parts of a split in one pass. For slices it would add up whole tables.
    of_users, of_items = torch.split(v.weight_1, [dim, v.weight_1.shape[-1] - dim], -1)
    found = user_product(items, of_items.mT)
    offset = user_product(users[:, None], of_users.mT) + v.bias_1[:, None]
    # Each layer writes one table instead of three. Allocating their memory costs as much as filling
    # them.
    found = found.add_(offset) if len(found) == len(offset) else found + offset
    for layer in range(2, n_layers + 1):
        weight, bias = v[f"weight_{layer}"], v[f"bias_{layer}"]
        found = user_product(torch.relu_(found), weight.mT).add_(bias[:, None])
    return torch.relu_(found)


# Rows (n_users, n_rows, dim) of a minibatch's distinct items, in a user's own table and in the
# version, and a mask of the rows that exist, (n_users, n_rows). Results are 0 with fewer than two
# rows.


def normalised(rows: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return rows with mean 0 and variance 1 (biased) in every column, over the rows that exist.

    A row that does not exist is 0.
    """
    mask = there[:, :, None]
    count = mask.sum(1, keepdim=True).clamp(min=1.0)
    centred = (rows - (rows * mask).sum(1, keepdim=True) / count) * mask
    variance = centred.square().sum(1, keepdim=True) / count
    return centred * (variance + _BATCH_NORM).rsqrt()


def alignment_and_uniformity(
    own: torch.Tensor, version: torch.Tensor, there: torch.Tensor, off: float
) -> torch.Tensor:
    """Return mean_i |c_i - g_i|^2 + off log mean_{i != j} exp(-2 |c_i - c_j|^2), rows of length 1.

    This is AU (Wang and Isola, ICML 2020), applied to items. A single row has no uniformity term.
    """
    from fedrec.tensor_products import user_product

    own, version, count = _unit(own), _unit(version), there.sum(1).clamp(min=2.0)
    apart = ((own - version).square().sum(2) * there).sum(1) / count
    # |c_i - c_j|^2 = 2 - 2 <c_i, c_j>.
    close = (4.0 * user_product(own, own.mT) - 4.0).exp() * _pairs(there)
    uniform = (close.sum((1, 2)) / (count * (count - 1.0))).clamp(min=_NORM_SQUARES).log()
    return of_two(apart + off * uniform, there)


def contrast(
    own: torch.Tensor, version: torch.Tensor, there: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return DuoRec's InfoNCE (Qiu et al., WSDM 2022): c_i must find g_i among all other rows."""
    import torch

    from fedrec.tensor_products import user_product

    own, version = _unit(own), _unit(version)
    others = _pairs(there) == 0
    to_own = (user_product(own, own.mT) / temperature).masked_fill(others, _NEVER)
    to_version = user_product(own, version.mT) / temperature
    right = to_version.diagonal(dim1=1, dim2=2)
    to_version = to_version.masked_fill(others, _NEVER)
    every = torch.cat([right[:, :, None], to_own, to_version], dim=2).logsumexp(2)
    return of_two(((every - right) * there).sum(1) / there.sum(1).clamp(min=1.0), there)


def decorrelation(own: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return FedDecorr's |K|_F^2 / d^2 (Shi et al., ICLR 2023). K are the columns' correlations."""
    from fedrec.tensor_products import user_product

    rows = normalised(own, there)
    products = user_product(rows.mT, rows) / there.sum(1).clamp(min=1.0)[:, None, None]
    return of_two(products.square().sum((1, 2)) / own.shape[2] ** 2, there)


def supervised_contrast(
    rows: torch.Tensor, labels: torch.Tensor, there: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return CoFedRec's contrast of rows: those with the same label must find each other.

    It is SupCon (Khosla et al. 2020) with a base temperature of .5.

    Args:
        labels: the cluster of each row, or less than 0 for none, (n_users, n_rows).
    """
    from fedrec.tensor_products import user_product

    rows, pairs = _unit(rows) * temperature**-0.5, _pairs(there)
    cosines = user_product(rows, rows.mT)
    every = cosines.masked_fill(pairs == 0, _NEVER).logsumexp(2)
    same = pairs * ((labels[:, :, None] == labels[:, None]) & (labels >= 0)[:, :, None])
    n_same = same.sum(2)
    # The sum of z_i z_p is z_i times the sum of z_p, which keeps one table of pairs less.
    to_same = (rows * user_product(same, rows)).sum(2)
    terms = (to_same - n_same * every) / (n_same + 1e-6)
    found = (terms * there).sum(1) / there.sum(1).clamp(min=1.0)
    return of_two(-temperature / 0.5 * found, there)


def lengths(rows: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the lengths of rows along an axis, never exactly 0."""
    return rows.square().sum(axis).clamp(min=_NORM_SQUARES).sqrt()


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / lengths(rows, 2)[:, :, None]


def _pairs(there: torch.Tensor) -> torch.Tensor:
    """Return 1 for two different rows that exist, else 0, (n_users, n_rows, n_rows)."""
    import torch

    apart = 1.0 - torch.eye(there.shape[1], dtype=there.dtype, device=there.device)
    return there[:, :, None] * there[:, None] * apart


def of_two(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return the values of users with two rows or more, else 0."""
    return values.where(there.sum(1) >= 2.0, 0.0)
