"""ease: the closed-form item-item model from exact co-occurrence counts.

Model ("Embarrassingly Shallow Autoencoders for Sparse Data", Steck 2019, section 3.1): a user
scores item j by sum of B_ij over the items i that the user holds. With X (users x items, 1 for an
interaction) and G = X^T X, the B that minimises |X - X B|^2 + lambda |B|^2 with a zero diagonal is

    P = (G + lambda I)^-1,    B_ij = -P_ij / P_jj for i != j,    B_jj = 0.

All that training needs from the users are the integers G_ij, the numbers of users that hold both i
and j. The count round counts the diagonal, the holders of each item. Items with too few holders are
left out. The pairs i < j of the others are numbered column by column, pair j (j - 1) / 2 + i, and
cut into `rounds.total` equal parts. A training round sums the first part that is still missing. Its
length depends only on the plan and the number of travelling rows. It is the same in every round, so
the last rounds may have nothing left to count.

Client: counts the pairs of its users' training items, each user once, without any rounding. The
party that has the sum: stores the part. B is never sent. Every party that needs it computes it from
G, in float64, for the items that enough users hold.

Until all pairs of items that enough users hold are known, B is 0, and so is every score. Otherwise,
a model of a part of the catalogue might look best on validation by chance and be kept. The last
part makes B the B of centralised EASE.

Under noise, users contribute weighted counts and weighted pairs, which are parts of one release.
`noisy_pairs` has the formulas, the proof of their sensitivity and the model.

Without noise, all rounds sum over the clients that were counted. If some of them drop out, the
others are counted again and continue. Parts counted over different clients do not form one Gram
matrix. G is then the matrix of the available sums, with the largest count of each item on its
diagonal. If G + lambda I is no longer positive definite, there is no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.declarations import (
    HOLDER_PAIRS,
    About,
    AlgorithmSettings,
    Constant,
    Parameter,
    SearchSpace,
    Shapes,
    UpdateTensor,
)
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.algorithms.noisy_pairs import MOST_PAIRS_AT_ONCE, planned_release
from fedrec.algorithms.settings_warnings import WEIGHING_BYTES
from fedrec.algorithms.sketched_weights import scores_of, scores_of_history, served_rows
from fedrec.errors import SettingsError, TrainingError
from fedrec.model.state import SharedState

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums


_MOST_ITEMS = 16_384
"""This number of items makes a model of 1 GiB, and weights that take 6 GiB to compute."""


class EASESettings(AlgorithmSettings):
    """ease: the closed-form item-item model from exact co-occurrence counts."""

    name: Literal["ease"] = Field(default="ease", description="Which algorithm trains.")
    regularisation: float = Field(
        default=300.0,
        gt=0,
        le=1e9,
        description="L2 coefficient (lambda) of the item-item weights. Larger data needs more.",
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {"algorithm.regularisation": (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)}


class EASE(ExactAlgorithm):
    """Co-occurrence counts and the model that follows. See the module's docstring."""

    settings_type: ClassVar[type[AlgorithmSettings]] = EASESettings
    about: ClassVar[About] = ABOUT["ease"]
    one_release: ClassVar[bool] = True

    settings: EASESettings

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        super().__init__(settings, shapes)
        self._weights: tuple[SharedState, NDArray[np.float32]] | None = None
        self._noisy: tuple[SharedState, dict[str, NDArray[np.float64]]] | None = None
        self._release = None
        if shapes.noise is not None:
            self._release = planned_release(self.shapes.n_items, self.shapes.n_rounds, shapes.noise)

    def _part_length(self) -> int:
        """Return the number of pairs that a round sums, or raise an error if there are too many."""
        n_items, n_parts = self.shapes.n_items, self.shapes.n_rounds
        n_pairs = _n_pairs(n_items)
        part_length = max(1, -(-n_pairs // n_parts))
        if n_items > _MOST_ITEMS:
            raise SettingsError(
                f"{n_items} rows travel, one for each item that enough users hold. These make "
                f"{n_pairs} pairs: the model alone would take {8 * n_pairs} bytes, and computing "
                f"its weights {WEIGHING_BYTES * n_items**2}. ease takes at most {_MOST_ITEMS} "
                "rows.",
                remedy='Raise federation.minimum_item_users, or choose algorithm.name = "fedals".',
            )
        if part_length > MOST_PAIRS_AT_ONCE:
            raise SettingsError(
                f"{n_items} rows travel, one for each item that enough users hold. These make "
                f"{n_pairs} pairs. With rounds.total = {n_parts}, a round would sum {part_length} "
                f"of them: {4 * part_length} bytes without encryption and about {15 * part_length} "
                f"under bfv. The maximum is {MOST_PAIRS_AT_ONCE} pairs.",
                remedy=f"Set rounds.total = {-(-n_pairs // MOST_PAIRS_AT_ONCE)} or more, or "
                "raise federation.minimum_item_users.",
            )
        return part_length

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The known counts of pairs, and those of items."""
        most = _n_pairs(self.shapes.n_items) if self._release is None else self._release.length
        return (
            Parameter("pairs", "net", (0,), Constant(), grown_shape=(most,)),
            Parameter("item_users", "rows", (), Constant()),
        )

    @cached_property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """A part of the pair counts."""
        if self._release is not None:
            if not self.settings.is_default("regularisation"):
                raise SettingsError(
                    f"algorithm.regularisation is {self.settings.regularisation:g}, but under "
                    "privacy.mechanism lambda follows from the noise: a choice on validation would "
                    "reveal facts about users.",
                    remedy="Omit algorithm.regularisation.",
                )
            return (
                UpdateTensor(
                    name="pairs",
                    shape=(self._release.part_length,),
                    limit=self.shapes.update.clip,
                    fraction_bits=self.shapes.update.fraction_bits,
                ),
            )
        return (
            UpdateTensor(
                name="pairs",
                shape=(self._part_length(),),
                limit=1.0,
                fraction_bits=0,
                signed=False,
                counted_by=HOLDER_PAIRS,
            ),
        )

    def steps(self, n_positives: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of items of each user."""
        return n_positives

    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory of a user's items and of its scores."""
        return 8 * n_active + 48 * n_steps

    def read(
        self, shared: SharedState, active: NDArray[np.int64], round_id: int
    ) -> dict[str, NDArray[Any]]:
        """Return this version's weights, and the position at which the part to count begins."""
        if self._release is not None:
            known = np.asarray(len(shared.kept["pairs"]))
            return self._model_of(shared) | {"known": known} | self._places(shared)
        return {
            "item_weights": self._weights_of(shared, active),
            "first_pair": np.asarray(len(shared.kept["pairs"])),
        }

    def _values(self, shared: SharedState) -> NDArray[np.float64]:
        """Return the noisy values so far, of contributions of length 1."""
        assert self.shapes.noise is not None
        return shared.kept["pairs"] / self.shapes.noise.clip

    def _places(self, shared: SharedState) -> dict[str, NDArray[np.int64]]:
        """Return `places` once the counts are known."""
        assert self._release is not None
        values = shared.kept["pairs"]
        return {"places": self._release.places(values)} if len(values) else {}

    def _model_of(self, shared: SharedState) -> dict[str, NDArray[np.float64]]:
        """Return the model of a noisy version, computed once per version."""
        assert self._release is not None
        if self._noisy is None or self._noisy[0] is not shared:
            self._noisy = (shared, self._release.model(self._values(shared)))
        return self._noisy[1]

    def _weights_of(self, shared: SharedState, active: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return B of a version, computed once per version, float32 (n_active, n_active)."""
        if self._weights is None or self._weights[0] is not shared:
            weights = item_weights(
                shared.kept["pairs"],
                shared.tensors["item_users"],
                active,
                self.settings.regularisation,
            )
            self._weights = (shared, weights.astype(np.float32))
        return self._weights[1]

    def fit(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Count the round's part of the pairs. The loss is that of the version at the start."""
        import torch

        from fedrec.algorithms.accelerators.pair_counts import count_pairs

        counts = np.zeros(sums["pairs"].width, dtype=np.int64)
        pointers, items = chunk.pointers.cpu().numpy(), chunk.positives.cpu().numpy()
        if self._release is None:
            count_pairs(pointers, items, int(start.shared["first_pair"]), counts)
        else:
            self._add_noisy(pointers, items, start, counts)
        sums["pairs"].add_sums(torch.from_numpy(counts).to(chunk.positives.device), finite=True)
        sizes = chunk.sizes
        own = self.scores(chunk, start, private)[chunk.owner, chunk.positives]
        total = torch.segment_reduce((1.0 - own) ** 2, "sum", lengths=sizes, unsafe=True)
        return ChunkResult(loss=total / sizes.clamp(min=1), clipped=torch.zeros_like(sizes))

    def _add_noisy(
        self,
        pointers: NDArray[np.int64],
        items: NDArray[np.int64],
        start: RoundStart,
        sums: NDArray[np.int64],
    ) -> None:
        """Add users' values of a part of a noisy release to its sums, in grid steps."""
        from fedrec.algorithms.accelerators.pair_counts import add_pairs

        release, limit, known = self._release, self.tensors[0].bound, int(start.shared["known"])
        assert release is not None
        sizes = np.diff(pointers)
        if not known:
            each = release.of_counts_in_steps(sizes, limit)
            np.add.at(sums, items, np.repeat(each, sizes))
        elif known < release.length:
            places = start.shared["places"].cpu().numpy()[items]
            owner = np.repeat(np.arange(len(sizes)), sizes)[places >= 0]
            inside = np.bincount(owner, minlength=len(sizes))
            ends = np.concatenate([[0], np.cumsum(inside)])
            of_pair, of_item = release.of_entries_in_steps(inside, limit)
            first = known - self.shapes.n_items
            add_pairs(ends, places[places >= 0], first, sums, of_pair, of_item)

    def scores(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the sum of B's rows over each user's training items."""
        if self._release is not None:
            return scores_of(chunk, start.shared)
        return chunk.summed(start.shared["item_weights"])

    def serving(
        self, shared: SharedState, active: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float32]]:
        """Return B transposed: an item's row has the weights of all items of a history.

        Under noise, it is the factor of B.
        """
        if self._release is not None:
            return served_rows(self._model_of(shared), active, self.shapes.n_items)
        rows = np.zeros((self.shapes.n_items, len(active)), dtype=np.float32)
        rows[active] = self._weights_of(shared, active).T
        return {"item_embedding": rows}

    def preferences(
        self,
        serving: Mapping[str, NDArray[np.float32]],
        own: Mapping[str, NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return the scores of all items for a history."""
        if self._release is None:
            return super().preferences(serving, own)
        return scores_of_history(serving, own["user_embedding"])

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Store the round's part after the pairs that are already known."""
        known = shared.kept["pairs"]
        if self._release is not None:
            added = change["pairs"][: self._release.part(len(known))] * self._release.noise.users
            return shared.with_tensors(pairs=np.concatenate([known, added]))
        missing = _n_pairs(self._n_active(shared)) - len(known)
        if missing <= 0 or not counts.any():
            return shared
        most = np.maximum(shared.tensors["item_users"], counts)
        pairs = np.concatenate([known, change["pairs"][:missing]])
        return shared.with_tensors(pairs=pairs, item_users=most)

    def _n_active(self, shared: SharedState) -> int:
        """Return the number of items that enough users hold."""
        if shared.holders is None:
            return self.shapes.n_items
        return int((shared.holders >= self.shapes.minimum_item_users).sum())


def _n_pairs(n_items: int) -> int:
    return n_items * (n_items - 1) // 2


def item_weights(
    pairs: NDArray[np.float64],
    item_users: NDArray[np.float64],
    active: NDArray[np.int64],
    regularisation: float,
) -> NDArray[np.float64]:
    """Return B, float64 (n_active, n_active): row i has the weights of item i for all others.

    While any pair of active items is unknown, B is 0.

    Args:
        pairs: users of each pair that is known, in the order of the module's docstring.
        item_users: users of each item, (n_items,).
        active: rows of the active items, ascending (n_active,).
        regularisation: lambda.

    Raises:
        TrainingError: no set of users has these counts, so there are no weights.
    """
    system = np.zeros((len(active), len(active)))
    if len(pairs) < _n_pairs(len(active)):
        return system
    for place in range(len(active)):
        first = _n_pairs(place)
        system[:place, place] = pairs[first : first + place]
    # Without pairs B is 0.
    if system.any():
        system += system.T
        system[np.diag_indices_from(system)] = item_users[active] + regularisation
        system = _inverse(system)
        system /= -np.diag(system).copy()
        np.fill_diagonal(system, 0.0)
    return system


def _inverse(system: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse of a positive definite matrix, or raise an error for any other."""
    import torch

    from fedrec.tensor_products import one_thread

    with one_thread():
        factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(system))
        if int(failed) or not bool(torch.isfinite(factor).all()):
            raise TrainingError(
                "No set of users has these pair counts, so no item weights follow from them.",
                remedy=EASE.about.advice.divergence_remedy,
            )
        inverse: NDArray[np.float64] = torch.cholesky_inverse(factor).numpy()
    return inverse
