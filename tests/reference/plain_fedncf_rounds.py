"""FedNCF's rounds in float64: every user by autograd, and the sums of both aggregations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from reference.plain_fedncf import train_user

from fedrec.data import UserSplit
from fedrec.model.state import PrivateState, SharedState

NEAR_A_KINK = 5e-6
"""A unit whose input is this close to 0 in float64 may be on either side of it in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One user after a round; who came too near a kink is left out of the comparison."""

    near: bool
    vector: torch.Tensor
    rows: torch.Tensor
    network: dict[str, torch.Tensor]
    touched: list[int]
    n_positives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRound:
    """A round of everybody who is not left out, and the states that it begins with.

    Attributes:
        taking: the users who take part.
        vectors: p after the round, (n_users, dim).
        network: the sum of the networks' moves, weighted as the aggregation says.
        weight: the sum of those weights.
        rows: the sum of the rows' moves, (n_items, dim).
        counts: users who touched each row.
    """

    aggregation: str
    shared: SharedState
    private: PrivateState
    taking: NDArray[np.bool_]
    vectors: torch.Tensor
    network: dict[str, torch.Tensor]
    weight: float
    rows: torch.Tensor
    counts: torch.Tensor

    def after(self) -> dict[str, NDArray[np.float64]]:
        """Return the next shared tensors."""
        per_row = self.counts.clamp(min=1)[:, None]
        divisor = per_row if self.aggregation == "mf_secavg" else self.taking.sum()
        moves = {name: move / self.weight for name, move in self.network.items()}
        moves["item_embedding"] = self.rows / divisor
        return {name: self.shared.tensors[name] + move.numpy() for name, move in moves.items()}


class PlainRounds:
    """The rounds numbered `first` and `first + 1` from given states, each made once.

    Args:
        settings: further arguments of `train_user`.
    """

    def __init__(
        self,
        users: UserSplit,
        shared: SharedState,
        private: PrivateState,
        first: int,
        **settings: float,
    ) -> None:
        self._users, self._start, self._first = users, (shared, private), first
        self._settings = settings
        self.rounds = cache(self._rounds)
        self._beginning = cache(self._beginning_of)

    def _rounds(self, aggregation: str, batch_size: int, epochs: int) -> tuple[PlainRound, ...]:
        visits = self._beginning(batch_size, epochs)
        one = self._sum(aggregation, *self._start, visits)
        # What trains in float32 begins the second round with float32, too.
        shared = one.shared.with_tensors(
            **{name: np.float64(np.float32(value)) for name, value in one.after().items()}
        )
        private = PrivateState({"user_embedding": one.vectors.float().numpy()})
        visits = self._visits(self._first + 1, shared, private, batch_size, epochs)
        return one, self._sum(aggregation, shared, private, visits)

    def _beginning_of(self, batch_size: int, epochs: int) -> list[Visit]:
        """Return the first round's visits, which are the same for every aggregation."""
        return self._visits(self._first, *self._start, batch_size, epochs)

    def _visits(
        self, round_id: int, shared: SharedState, private: PrivateState, batch_size: int,
        epochs: int,
    ) -> list[Visit]:  # fmt: skip
        start = {
            name: torch.from_numpy(value.astype(np.float32)).double()
            for name, value in shared.tensors.items()
        }
        table = start.pop("item_embedding")
        vectors = torch.from_numpy(private.tensors["user_embedding"]).double()
        found = []
        for index, key in enumerate(self._users.user_keys().tolist()):
            positives, margins = self._users.train_of(index).tolist(), []
            vector, rows, network, touched = train_user(
                vectors[index], table, start, key, positives, positives, round_id=round_id,
                epochs=epochs, batch_size=batch_size, margins=margins, **self._settings,
            )  # fmt: skip
            found.append(
                Visit(
                    near=min(margins) <= NEAR_A_KINK,
                    vector=vector,
                    rows=rows - table,
                    network={name: value - start[name] for name, value in network.items()},
                    touched=touched,
                    n_positives=len(positives),
                )
            )
        return found

    def _sum(
        self, aggregation: str, shared: SharedState, private: PrivateState, visits: list[Visit]
    ) -> PlainRound:
        vectors = torch.from_numpy(private.tensors["user_embedding"]).double()
        rows, counts = torch.zeros_like(visits[0].rows), torch.zeros(len(visits[0].rows))
        network = {name: torch.zeros_like(move) for name, move in visits[0].network.items()}
        total = 0.0
        for index, visit in enumerate(visits):
            if visit.near:
                continue
            vectors[index] = visit.vector
            rows += visit.rows
            counts[visit.touched] += 1
            weight = visit.n_positives if aggregation == "mf_secavg" else 1
            total += weight
            for name, move in visit.network.items():
                network[name] += weight * move
        return PlainRound(
            aggregation=aggregation,
            shared=shared,
            private=private,
            taking=np.array([not visit.near for visit in visits]),
            vectors=vectors,
            network=network,
            weight=total,
            rows=rows,
            counts=counts,
        )
