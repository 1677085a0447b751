"""The tensors that users of a trained algorithm send, and how a server divides the sums.

All of it follows from the parameters, the optimisers and the section `update`. An algorithm writes
none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import HOLDERS, TRAINED, Parameter, Shapes, UpdateTensor
from fedrec.algorithms.optimisers import Optimiser
from fedrec.updates import UPDATES, Compressed, UpdateStructure

SAMPLE_BITS = 12
MOST_SAMPLES = 1 << SAMPLE_BITS
"""The largest weight of a user, if users are weighted by training items."""


class Sent:
    """The sent tensors, their divisors, and their means.

    Attributes:
        optimisers: those of all phases of a first round.
        moved: names of the parameters that these move.
        sources: the parameter whose change is sent, by shared tensor to which users contribute.
        divisors: the divisors of sums, as values of `Parameter.mean`.
    """

    def __init__(
        self, parameters: Sequence[Parameter], optimisers: Sequence[Optimiser], shapes: Shapes
    ) -> None:
        self.optimisers, self._shapes = optimisers, shapes
        self.moved = {name for optimiser in optimisers for name in optimiser.rates}
        copied = {
            entry.copies or entry.begins_as: entry.name
            for entry in parameters
            if (entry.copies or entry.begins_as) and entry.name in self.moved
        }
        self._summed = tuple(
            entry
            for entry in parameters
            if entry.scope in ("rows", "net") and (entry.name in self.moved or entry.name in copied)
        )
        self.sources = {
            entry.name: entry.name if entry.name in self.moved else copied[entry.name]
            for entry in self._summed
        }
        self.divisors = {entry.mean for entry in self._summed}
        self._structured = [entry for entry in parameters if entry.structured]

    @cached_property
    def structure(self) -> UpdateStructure:
        """The update structure of the rows that it may replace."""
        update, dims = self._shapes.update, [entry.shape[0] for entry in self._structured]
        return UPDATES[update.structure](update, max(dims, default=1))

    @property
    def compression(self) -> Compressed | None:
        """The structure, if it compresses trained rows."""
        return self.structure if isinstance(self.structure, Compressed) else None

    def basis(self, round_id: int) -> NDArray[np.float64] | None:
        """Return a round's B, (width, dim), or None for the identity."""
        return self.structure.basis(self._shapes.seed, round_id) if self._structured else None

    def compress(
        self, changes: dict[str, NDArray[np.int64]], counts: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[np.int64]], int]:
        """Compress a party's summed tensors if clients do that, and count the clipped values.

        In a row, the nearest matrix of a low rank may have larger values than the row had. They are
        clipped to the largest sum of the users that touched it.

        Args:
            changes: the summed tensors by name, in grid steps, in the shapes of `tensors`.
            counts: users that touched each active item.
        """
        if self.compression is None or self.compression.by == "user":
            return changes, 0
        found, n_clipped = dict(changes), 0
        structured = {entry.name for entry in self._structured}
        for tensor in self.tensors:
            if tensor.name not in structured:
                continue
            times = counts[:, None] if tensor.counted_by == HOLDERS else changes[tensor.counted_by]
            bound = times * float(tensor.bound // tensor.largest_weight)
            rounded = np.rint(
                self.compression.compress(
                    changes[tensor.name].astype(np.float64), self._shapes.n_items
                )
            )
            inside = np.clip(rounded, -bound, bound)
            found[tensor.name] = inside.astype(np.int64)
            n_clipped += int((inside != rounded).sum())
        return found, n_clipped

    def _divisor_of(self, entry: Parameter) -> str:
        """Return the divisor of a parameter's sum, as a value of `UpdateTensor.counted_by`."""
        divides_entries = entry.structured and self.structure.counts_entries
        return "entries" if divides_entries else entry.mean

    @cached_property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """The changes of the shared parameters, and their divisors."""
        n_items, update, found = self._shapes.n_items, self._shapes.update, []
        for entry in self._summed:
            row = (self.structure.width,) if entry.structured else entry.shape
            found.append(
                UpdateTensor(
                    name=entry.name,
                    shape=(n_items, *row) if entry.scope == "rows" else row,
                    limit=update.clip if entry.limit is None else entry.limit,
                    fraction_bits=update.fraction_bits
                    if entry.fraction_bits is None
                    else entry.fraction_bits,
                    per_item=entry.scope == "rows",
                    largest_weight=MOST_SAMPLES if entry.mean == "samples" else 1,
                    entries=self.structure.entries(n_items) if entry.structured else 0,
                    counted_by=self._divisor_of(entry),
                )
            )
        if self._structured and self.structure.counts_entries:
            found.append(
                UpdateTensor(
                    name="entries",
                    shape=(n_items, self.structure.width),
                    limit=1.0,
                    fraction_bits=0,
                    per_item=True,
                    signed=False,
                    counted_by=HOLDERS if "holders" in self.divisors else TRAINED,
                )
            )
        if "users" in self.divisors:
            found.append(
                UpdateTensor(name="users", shape=(1,), limit=1.0, fraction_bits=0, signed=False)
            )
        if "samples" in self.divisors:
            found.append(
                UpdateTensor(
                    name="samples",
                    shape=(1,),
                    limit=float(MOST_SAMPLES),
                    fraction_bits=SAMPLE_BITS,
                    signed=False,
                )
            )
        return tuple(found)

    def mean_changes(
        self, change: Mapping[str, NDArray[np.float64]], counts: NDArray[np.int64], round_id: int
    ) -> dict[str, NDArray[np.float64]]:
        """Return the mean change of every shared parameter, in the parameter's own shape.

        Delta_u is user u's change, which is A under a low-rank structure. By `Parameter.mean`:

            holders   sum_u Delta_u,i / max(n_i, 1)           n_i users touched row i
            users     sum_u Delta_u / max(n, 1)               n users trained
            samples   sum_u |D_u| Delta_u / sum_u |D_u|       |D_u| training items, 4096 at most

        If the structure counts entries, n_ij users that trained value j of row i replace n_i. The
        mean of A is then multiplied by B.
        """
        basis = self.basis(round_id)
        found = {}
        for entry in self._summed:
            values = change[entry.name]
            divided_by = self._divisor_of(entry)
            if divided_by == HOLDERS:
                divisor = counts.reshape(-1, *[1] * (values.ndim - 1)).astype(np.float64)
            else:
                divisor = change[divided_by] if divided_by == "entries" else change[divided_by][0]
            values = values / np.maximum(divisor, 1.0)
            if entry.structured and self.compression is not None:
                values = self.compression.compress(values, self._shapes.n_items)
            if entry.structured and basis is not None:
                values = self.structure.merge(np.zeros((len(values), *entry.shape)), values, basis)
            found[entry.name] = values
        return found
