"""What PLGC adds to a minibatch's loss: eRR, and what the paper tries in its place.

Each takes the rows of a user's own table C and of the version G, (n_users, n_rows, dim), and which
of them there are, (n_users, n_rows): those are a minibatch's distinct items. G is a constant. All
return (n_users,), 0 where a user has fewer than two rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_SMALL = 1e-8
_NORM_SQUARES = 1e-20
"""Below this a length counts as none: its derivative would be infinite."""
_BATCH_NORM = 1e-5
_NEVER = -1e9


def redundancy(
    own: torch.Tensor, version: torch.Tensor, there: torch.Tensor, off: float
) -> torch.Tensor:
    """Return L_eRR (eq. 18 and 19): cosines H of the columns of both views are to be the identity.

    (1/d) sum_i (1 - H_ii)^2 + (off/d) sum_{i != j} H_ij^2; columns are not centred.
    """
    own, version = own * there[:, :, None], version * there[:, :, None]
    lengths = _lengths(own, 1)[:, :, None] * _lengths(version, 1)[:, None]
    cosine = _product(own.mT, version) / (lengths + _SMALL)
    diagonal = cosine.diagonal(dim1=1, dim2=2)
    squares = diagonal.square()
    rest = cosine.square().sum((1, 2)) - squares.sum(1)
    return _of_two(((1.0 - diagonal).square().sum(1) + off * rest) / own.shape[2], there)


def features(
    rows: torch.Tensor,
    there: torch.Tensor,
    first: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    second: torch.Tensor,
    predictor: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """Return predictor(projector(rows)): linear, batch norm, ReLU, linear; linear with a bias.

    Matrices are (n_users, dim, dim) and take rows from the left, vectors (n_users, dim).
    """
    units = normalised(_product(rows, first), there) * scale[:, None] + shift[:, None]
    return _product(_product(units.relu(), second), predictor) + bias[:, None]


def normalised(rows: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return rows with mean 0 and variance 1 (biased) in every column, over those that are there.

    A row that is not there is 0.
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

    DirectAU (Wang et al., KDD 2022), of items; one user alone is spread over nothing.
    """
    own, version, count = _unit(own), _unit(version), there.sum(1).clamp(min=2.0)
    apart = ((own - version).square().sum(2) * there).sum(1) / count
    # |c_i - c_j|^2 = 2 - 2 <c_i, c_j>.
    close = (4.0 * _product(own, own.mT) - 4.0).exp() * _pairs(there)
    uniform = (close.sum((1, 2)) / (count * (count - 1.0))).clamp(min=_NORM_SQUARES).log()
    return _of_two(apart + off * uniform, there)


def contrast(
    own: torch.Tensor, version: torch.Tensor, there: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return DuoRec's InfoNCE (Qiu et al., WSDM 2022): c_i finds g_i among all other rows."""
    own, version = _unit(own), _unit(version)
    others = _pairs(there) == 0
    to_own = (_product(own, own.mT) / temperature).masked_fill(others, _NEVER)
    to_version = _product(own, version.mT) / temperature
    right = to_version.diagonal(dim1=1, dim2=2)
    to_version = to_version.masked_fill(others, _NEVER)
    every = _cat([right[:, :, None], to_own, to_version]).logsumexp(2)
    return _of_two(((every - right) * there).sum(1) / there.sum(1).clamp(min=1.0), there)


def decorrelation(own: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return FedDecorr's |K|_F^2 / d^2 (Shi et al., ICLR 2023), K the columns' correlations."""
    rows = normalised(own, there)
    products = _product(rows.mT, rows) / there.sum(1).clamp(min=1.0)[:, None, None]
    return _of_two(products.square().sum((1, 2)) / own.shape[2] ** 2, there)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    from fedrec.tensor_products import user_product

    return user_product(left, right)


def _lengths(rows: torch.Tensor, axis: int) -> torch.Tensor:
    return rows.square().sum(axis).clamp(min=_NORM_SQUARES).sqrt()


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / _lengths(rows, 2)[:, :, None]


def _pairs(there: torch.Tensor) -> torch.Tensor:
    """Return 1 for two different rows that are there, else 0, (n_users, n_rows, n_rows)."""
    import torch

    apart = 1.0 - torch.eye(there.shape[1], dtype=there.dtype, device=there.device)
    return there[:, :, None] * there[:, None] * apart


def _cat(parts: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat(parts, dim=2)


def _of_two(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return values of users with two rows or more, else 0."""
    return values.where(there.sum(1) >= 2.0, 0.0)
