"""fedals: federated implicit alternating least squares, without sampled negatives.

Model: score s = <p, q_i>. All items count, and interactions count more (Hu, Koren, Volinsky 2008):

    L = sum_u sum_i c_ui (y_ui - <p_u, q_i>)^2 + sum_u lambda_u |p_u|^2 + sum_i lambda_i |q_i|^2

with c = 1 + alpha and y = 1 if user u holds item i, else c = 1 and y = 0. lambda_u and lambda_i
grow with the number of interactions (Rendle et al. 2022, "Revisiting the Performance of iALS"):
lambda (n / 64)^nu.

Client: solves its users exactly, with sums over the items i of u,

    p_u = (Q^T Q + alpha sum_i q_i q_i^T + lambda_u I)^-1 (1 + alpha) sum_i q_i,

and contributes three linear statistics of fixed size:

    gram    = sum_u p_u p_u^T                                     the part of L over all items
    pull_i  = sum_{u has i} (alpha <p_u, q_i> - (1 + alpha)) p_u    its part over interactions
    users   = sum_u 1

Server: half the gradient of every row is g_i = q_i gram + lambda_i q_i + pull_i. A row's own
Hessian would be d x d values per item. It is replaced by H_i = gram (1 + alpha n_i / n) + lambda_i
I, which is diagonal in gram's eigenvectors for all rows at once. A velocity v compensates for the
difference:

    v_i <- momentum v_i + H_i^-1 g_i,    q_i <- q_i - v_i.

n_i and n are counted: n_i in the count round, n in every round. Rows without holders stay as they
are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.declarations import (
    HOLDERS,
    About,
    AlgorithmSettings,
    Constant,
    Normal,
    Parameter,
    SearchSpace,
    UpdateTensor,
)
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.exact_linalg import product, symmetric_eigen
from fedrec.model.state import SharedState

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums


Values = TypeVar("Values", bound=Any)
"""A float64 array of numpy or of torch."""

_INITIAL_LENGTH = 0.8
_REFERENCE_INTERACTIONS = 64.0
_VALUES_AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Number of values in a block of rows. The block fits into a CPU's cache."""
_FEWEST_COLUMNS = 8
_LARGEST_UNSPLIT_DIM = 96
"""Systems up to this size are never split among threads. Differences were seen from 160 on."""


class FedALSSettings(AlgorithmSettings):
    """fedals: implicit least squares, users solved exactly. It needs about ten rounds."""

    name: Literal["fedals"] = Field(default="fedals", description="Which algorithm trains.")
    dim: int = Field(default=64, ge=1, le=512, description="Length of an embedding vector.")
    alpha: float = Field(
        default=5.0,
        gt=0,
        le=1e4,
        description="Extra weight (alpha) of an interaction. An item without one weighs 1.",
    )
    regularisation: float = Field(
        default=20.0,
        gt=0,
        le=1e6,
        description="L2 coefficient (lambda) of a user or item with 64 interactions.",
    )
    frequency_exponent: float = Field(
        default=0.75,
        ge=0,
        le=1,
        multiple_of=0.125,
        description="How fast regularisation grows with the number n of interactions: the "
        "coefficient is multiplied by (n / 64)^frequency_exponent. If 0, it is constant.",
    )
    momentum: float = Field(
        default=0.4, ge=0, lt=1, description="Share of an item's last step that is repeated."
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (32, 64, 128, 256),
            "algorithm.alpha": (1.0, 2.0, 5.0, 10.0),
            "algorithm.regularisation": (5.0, 10.0, 20.0, 50.0),
            "algorithm.frequency_exponent": (0.0, 0.5, 0.75, 1.0),
        }


class FedALS(ExactAlgorithm):
    """Exactly solved users, one preconditioned step for the items. See the module's docstring."""

    settings: FedALSSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = FedALSSettings
    about: ClassVar[About] = ABOUT["fedals"]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Items, their velocities, and users, which are solved from their items alone."""
        dim = self.settings.dim
        return (
            Parameter("item_embedding", "rows", (dim,), Normal(_INITIAL_LENGTH / math.sqrt(dim))),
            Parameter("item_velocity", "rows", (dim,), Constant()),
            Parameter("user_embedding", "own", (dim,), Constant()),
        )

    @cached_property
    def recommending(self) -> tuple[str, ...]:
        """Only the items: users are solved from their histories."""
        return ("item_embedding",)

    @cached_property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """The statistics of the module's docstring.

        `update.clip` bounds the values of p, from which the limits of the others follow.
        """
        dim, clip = self.settings.dim, self.shapes.update.clip
        bits = self.shapes.update.fraction_bits
        return (
            UpdateTensor(
                name="pull",
                shape=(self.shapes.n_items, dim),
                limit=(1.0 + 2.0 * self.settings.alpha) * clip,
                fraction_bits=bits,
                per_item=True,
                counted_by=HOLDERS,
            ),
            UpdateTensor(
                name="gram",
                shape=(dim * (dim + 1) // 2,),
                limit=clip * clip,
                fraction_bits=bits,
                counted_by="users",
            ),
            UpdateTensor(name="users", shape=(1,), limit=1.0, fraction_bits=0, signed=False),
        )

    def steps(self, n_positives: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of items of each user: users are padded to the next power of two."""
        return np.maximum(n_positives, _FEWEST_COLUMNS)

    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory of a user's padded items and linear system."""
        dim = _padded(self.settings.dim)
        return 4 * (3 * n_steps * dim + 5 * dim * dim)

    def refresh(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Solve every user of the chunk exactly."""
        import torch

        from fedrec.tensor_products import batched_product, one_thread

        alpha, dim = self.settings.alpha, self.settings.dim
        items = start.shared["item_embedding"]
        # A row of zeros is the padding.
        table = items.new_zeros((len(items) + 1, _padded(dim)))
        table[:-1, :dim] = items
        sizes = chunk.sizes
        place = torch.arange(chunk.n_steps, device=items.device)
        where = (chunk.pointers[:-1, None] + place).clamp(max=len(chunk.positives) - 1)
        held = torch.where(place < sizes[:, None], chunk.positives[where], len(items))
        own = table.index_select(0, held.view(-1)).view(chunk.n_users, chunk.n_steps, -1)
        system = batched_product(own.transpose(1, 2), own) * alpha + _gram(table)
        growth = self._growth(sizes.to(torch.float64), torch.sqrt)
        ridge = (self.settings.regularisation * growth).to(torch.float32)
        diagonal = system.diagonal(dim1=1, dim2=2)
        diagonal.add_(ridge[:, None])
        # Systems begin at a cache line in memory, and the padding solves to 0.
        diagonal[:, dim:] = 1.0
        right_side = own.sum(1) * (1.0 + alpha)
        with one_thread() if dim > _LARGEST_UNSPLIT_DIM else nullcontext():
            factor, failed = torch.linalg.cholesky_ex(system)
            solved = torch.cholesky_solve(right_side[:, :, None], factor)[:, :dim, 0]
        # A system that isn't positive definite results in values that aren't finite.
        return {
            "user_embedding": torch.where(failed[:, None] > 0, torch.nan, solved),
        }

    def _growth(self, n_interactions: Values, root: Callable[[Values], Values]) -> Values:
        """Return (n / 64)^exponent by roots and products, which give the same bits everywhere."""
        eighth = root(root(root(n_interactions / _REFERENCE_INTERACTIONS)))
        grown = eighth * 0.0 + 1.0
        for _ in range(round(8 * self.settings.frequency_exponent)):
            grown = grown * eighth
        return cast(Values, grown)

    def fit(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Add the users' statistics. `refresh` solved their vectors."""
        import torch

        alpha = self.settings.alpha
        items, users = start.shared["item_embedding"], private["user_embedding"]
        sizes, owner = chunk.sizes, chunk.owner
        at_once = max(1, _VALUES_AT_ONCE.get(users.device.type, 1 << 22) // users.shape[1])
        clipped = torch.zeros_like(sizes)
        loss = users.new_zeros(len(owner))
        for begin in range(0, len(owner), at_once):
            part = slice(begin, begin + at_once)
            user, item = owner[part], chunk.positives[part]
            vectors = users.index_select(0, user)
            score = (vectors * items.index_select(0, item)).sum(-1)
            loss[part] = (1.0 - score) ** 2
            rows = (alpha * score - (1.0 + alpha))[:, None] * vectors
            clipped.index_add_(0, user, sums["pull"].add(item, rows))
        upper = torch.triu_indices(users.shape[1], users.shape[1], device=users.device)
        at_once = max(1, 2 * at_once // (users.shape[1] + 1))
        for begin in range(0, len(users), at_once):
            rows = users[begin : begin + at_once]
            clipped[begin : begin + at_once] += sums["gram"].add_whole(
                rows[:, upper[0]] * rows[:, upper[1]]
            )
        sums["users"].add_whole(users.new_ones((chunk.n_users, 1)))
        total = torch.segment_reduce(loss, "sum", lengths=sizes, unsafe=True)
        return ChunkResult(private=private, loss=total / sizes.clamp(min=1), clipped=clipped)

    def fold_in(
        self, items: NDArray[np.float64], positives: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Solve for p exactly, as a client does for its users."""
        own, alpha = items[positives], self.settings.alpha
        size = np.array([float(len(positives))])
        ridge = self.settings.regularisation * float(self._growth(size, np.sqrt)[0])
        system = items.T @ items + alpha * own.T @ own + ridge * np.eye(items.shape[1])
        vector = np.linalg.solve(system, (1.0 + alpha) * own.sum(0))
        return np.asarray(vector, dtype=np.float32)

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Take one preconditioned step with momentum for every row with holders."""
        n_users = float(change["users"][0])
        touched = np.nonzero(counts)[0]
        if not n_users or not len(touched):
            return shared
        dim, alpha = self.settings.dim, self.settings.alpha
        gram = np.zeros((dim, dim))
        gram[np.triu_indices(dim)] = change["gram"]
        gram += np.triu(gram, 1).T
        table, held = shared.tensors["item_embedding"].copy(), counts[touched].astype(np.float64)
        rows = table[touched]
        ridge = (self.settings.regularisation * self._growth(held, np.sqrt))[:, None]
        gradient = product(rows, gram) + ridge * rows + change["pull"][touched]
        values, vectors = symmetric_eigen(gram)
        curvature = np.maximum(values, 0.0) * (1.0 + alpha * held / n_users)[:, None] + ridge
        step = product(product(gradient, vectors) / curvature, vectors.T)
        velocity = shared.tensors["item_velocity"].copy()
        velocity[touched] = self.settings.momentum * velocity[touched] + step
        table[touched] = rows - velocity[touched]
        return shared.with_tensors(item_embedding=table, item_velocity=velocity)


def _padded(dim: int) -> int:
    return -(-dim // 16) * 16


def _gram(table: torch.Tensor) -> torch.Tensor:
    """Return table^T table, float32, in blocks: the same bits for every number of threads."""
    import torch

    n_blocks = max(2, -(-len(table) // 16))
    padded = table.new_zeros((n_blocks * 16, table.shape[1]), dtype=torch.float64)
    padded[: len(table)] = table
    blocks = padded.view(n_blocks, 16, -1)
    return torch.bmm(blocks.transpose(1, 2), blocks).sum(0).to(torch.float32)
