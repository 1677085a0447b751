"""References that score by inner products of vectors: iALS and LightGCN."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec_lab.comparison.references.reference import (
    Fit,
    ScoredReference,
    Scores,
    interactions_of,
)
from fedrec_lab.comparison.references.search import Axis, Setting

SWEEPS = 15
CONJUGATE_STEPS = 3
_REFERENCE_INTERACTIONS = 64.0
_SMALLEST = 1e-30


class IALS(ScoredReference):
    """iALS (Hu, Koren, Volinsky 2008) with frequency-scaled regularisation (Rendle et al. 2022).

        L = sum_ui c_ui (y_ui - <p_u, q_i>)^2 + sum_u lambda_u |p_u|^2 + sum_i lambda_i |q_i|^2

    with y = 1 and c = 1 + alpha for an interaction, y = 0 and c = 1 otherwise, and
    lambda_u = lambda (n_u / 64)^exponent. Users and items are improved in turn, each by a few steps
    of conjugate gradients from their last vectors (Takacs, Pilaszy and Tikk 2011). The package
    `implicit` works alike, but has one lambda for all.
    """

    name: ClassVar[str] = "ials"
    label: ClassVar[str] = "iALS"
    seeded: ClassVar[bool] = True
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis(name="lambda", values=(3.0, 10.0, 30.0, 100.0), start=10.0, widest=(0.1, 3000.0)),
        Axis(name="alpha", values=(1.0, 3.0, 10.0, 30.0), start=3.0, widest=(0.1, 1000.0)),
        Axis(
            name="dim",
            values=(64.0, 128.0, 256.0, 512.0),
            start=128.0,
            widest=(16.0, 512.0),
            counts_rows=True,
        ),
        Axis(name="exponent", values=(0.0, 0.5, 1.0), start=0.5),
    )

    def prepare(self, users: UserSplit, n_items: int) -> Fit:
        """See `ScoredReference.prepare`."""
        held = interactions_of(users, n_items, np.float32)
        sides = [(torch_sparse(side), _sizes(side)) for side in (held, held.T.tocsr())]

        def fit(setting: Setting, seed: int) -> Scores:
            ridge, alpha, dim, exponent = setting
            random = torch.Generator().manual_seed(seed)
            tables = [
                torch.randn(n, int(dim), generator=random) * (0.1 / dim**0.5) for n in held.shape
            ]
            ridges = [ridge * (sizes / _REFERENCE_INTERACTIONS) ** exponent for _, sizes in sides]
            for _ in range(SWEEPS):
                for own in (0, 1):
                    tables[own] = improved(
                        tables[own], tables[1 - own], sides[own][0], alpha, ridges[own]
                    )
            return _products(*tables)

        return fit


def improved(
    own: torch.Tensor,
    other: torch.Tensor,
    held: torch.Tensor,
    alpha: float,
    ridges: torch.Tensor,
    steps: int = CONJUGATE_STEPS,
) -> torch.Tensor:
    """Return one side's vectors nearer to the minimum of L while the other side's stay.

    Args:
        own: (n, dim).
        other: (m, dim).
        held: sparse (n, m), 1 for an interaction.
        ridges: lambda of each row of `own`, (n, 1).
    """
    gram = other.T @ other

    def curved(vectors: torch.Tensor) -> torch.Tensor:
        products = torch.sparse.sampled_addmm(held, vectors, other.T, beta=0.0, alpha=alpha)
        found: torch.Tensor = vectors @ gram + ridges * vectors + products @ other
        return found

    left = (1.0 + alpha) * (held @ other) - curved(own)
    step, old = left, (left * left).sum(1, keepdim=True)
    for _ in range(steps):
        bent = curved(step)
        length = old / (step * bent).sum(1, keepdim=True).clamp(min=_SMALLEST)
        own, left = own + length * step, left - length * bent
        new = (left * left).sum(1, keepdim=True)
        step, old = left + new / old.clamp(min=_SMALLEST) * step, new
    return own


def torch_sparse(matrix: Any) -> torch.Tensor:
    """Return a scipy matrix as a torch matrix in compressed rows."""
    with warnings.catch_warnings():
        # Torch warns that the interface of its sparse matrices may change.
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
        )


def _sizes(held: Any) -> torch.Tensor:
    """Return the number of interactions of each row, or 1 if there are none, (n, 1)."""
    return torch.from_numpy(np.maximum(np.diff(held.indptr), 1).astype(np.float32))[:, None]


def _products(of_users: torch.Tensor, of_items: torch.Tensor) -> Scores:
    def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.asarray((of_users[torch.from_numpy(rows)] @ of_items.T).numpy())

    return scores


DIM = 64
LEARNING_RATE = 0.04
BATCHES = 8
"""Steps of Adam in a pass over the interactions."""


class LightGCN(ScoredReference):
    """LightGCN (He et al. 2020): vectors averaged over the graph of interactions, trained by BPR.

    With the symmetric normalised adjacency A of users and items and first vectors E, the final
    vectors are M E with M = (I + A + ... + A^layers) / (layers + 1). The loss of an interaction
    (u, i) and an item j that u does not have is softplus(x_uj - x_ui) plus decay / 2 times the
    squared lengths of their first vectors. M is symmetric, so that a gradient with respect to M E
    becomes one with respect to E by M, too. Adam takes large batches. One training gives the models
    for all numbers of passes to try.
    """

    name: ClassVar[str] = "lightgcn"
    label: ClassVar[str] = "LightGCN"
    seeded: ClassVar[bool] = True
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis(name="passes", values=(10.0, 20.0, 40.0), start=40.0, widest=(10.0, 40.0)),
        Axis(name="layers", values=(1.0, 2.0, 3.0, 4.0), start=2.0),
        Axis(name="decay", values=(0.0001, 0.001, 0.01), start=0.001, widest=(1e-6, 1.0)),
    )

    def prepare(self, users: UserSplit, n_items: int) -> Fit:
        """See `ScoredReference.prepare`."""
        held = interactions_of(users, n_items, np.float32)
        graph = adjacency(held)
        trained: dict[tuple[float, float, int], dict[float, torch.Tensor]] = {}

        def fit(setting: Setting, seed: int) -> Scores:
            passes, layers, decay = setting
            if (layers, decay, seed) not in trained:
                trained[layers, decay, seed] = _train(
                    users, held, graph, int(layers), decay, seed, self.axes[0].values
                )
            table = trained[layers, decay, seed][passes]
            return _products(table[: len(users)], table[len(users) :])

        return fit


def adjacency(held: Any) -> torch.Tensor:
    """Return A, sparse (n_users + n_items, n_users + n_items)."""
    from scipy.sparse import bmat

    of_users, of_items = (_sizes(side).numpy() ** -0.5 for side in (held, held.T.tocsr()))
    scaled = held.multiply(of_users).multiply(of_items.T)
    return torch_sparse(bmat([[None, scaled], [scaled.T, None]], format="csr", dtype=np.float32))


def spread(graph: torch.Tensor, vectors: torch.Tensor, layers: int) -> torch.Tensor:
    """Return M E."""
    total = vectors
    for _ in range(layers):
        vectors = graph @ vectors
        total = total + vectors
    return total / (layers + 1)


def gradient_of(
    graph: torch.Tensor, first: torch.Tensor, triples: torch.Tensor, layers: int, decay: float
) -> torch.Tensor:
    """Return the mean loss's gradient with respect to the first vectors.

    Args:
        triples: positions (3, n): users, items of theirs, other items.
    """
    user, item, other = spread(graph, first, layers)[triples]
    slope = -torch.sigmoid(((other - item) * user).sum(1, keepdim=True)) / len(user)
    moved = torch.cat([slope * (item - other), slope * user, -slope * user])
    final = torch.zeros_like(first).index_add_(0, triples.flatten(), moved)
    times = torch.bincount(triples.flatten(), minlength=len(first))[:, None]
    return spread(graph, final, layers) + decay / len(user) * times * first


def _train(
    users: UserSplit,
    held: Any,
    graph: torch.Tensor,
    layers: int,
    decay: float,
    seed: int,
    passes: tuple[float, ...],
) -> dict[float, torch.Tensor]:
    """Return the final vectors after each number of passes."""
    random = torch.Generator().manual_seed(seed)
    n_users, n_items = held.shape
    first = torch.randn(n_users + n_items, DIM, generator=random) * 0.1
    optimiser = torch.optim.Adam([first], lr=LEARNING_RATE)
    owner = torch.from_numpy(users.train_owner)
    items = torch.from_numpy(np.asarray(users.train_items))
    known = (owner * n_items + items).sort().values
    found: dict[float, torch.Tensor] = {}
    for number in range(1, int(max(passes)) + 1):
        order = torch.randperm(len(items), generator=random)
        for part in order.tensor_split(min(BATCHES, len(order))):
            other = _unseen(owner[part], known, n_items, random)
            triples = torch.stack([owner[part], n_users + items[part], n_users + other])
            first.grad = gradient_of(graph, first, triples, layers, decay)
            optimiser.step()
        if number in passes:
            found[float(number)] = spread(graph, first, layers)
    return found


def _unseen(
    owner: torch.Tensor, known: torch.Tensor, n_items: int, random: torch.Generator
) -> torch.Tensor:
    """Draw an item for each user, again up to five times if the user has it."""
    drawn = torch.randint(n_items, owner.shape, generator=random)
    for _ in range(5):
        cells = owner * n_items + drawn
        place = torch.searchsorted(known, cells).clamp(max=len(known) - 1)
        again = torch.randint(n_items, owner.shape, generator=random)
        drawn = torch.where(known[place] == cells, again, drawn)
    return drawn
