"""A model with private item rows: what the trainer does with an algorithm of one page.

Scores <w, C_i + D_i> + c with a shared table C and a user's own table D, C sparse and D apart from
it, as in FedRAP (Li et al. 2024), without its schedule and its decay of whole tables. It is here to
be timed, and no reproduction of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from fedrec.algorithms import (
    Batch,
    Normal,
    Parameter,
    Phase,
    Sgd,
    TrainedAlgorithm,
    TrainedSettings,
    Values,
    dot,
)

__all__ = ["APART", "BATCH", "DIM", "EPOCHS", "RATE", "ROW_RATE", "SPARSE", "PrivateRows"]

DIM, BATCH, EPOCHS = 32, 2048, 10
RATE, ROW_RATE, SPARSE, APART = 0.5, 8.0, 0.1, 0.1


class PrivateRowsSettings(TrainedSettings):
    """Ten passes over one minibatch of everything that a user has."""

    name: Literal["private-rows"] = "private-rows"
    batch_size: int = BATCH
    local_epochs: int = EPOCHS


class PrivateRows(TrainedAlgorithm):
    """Shared and own item rows; see the module's docstring."""

    name = "private-rows"
    settings_type = PrivateRowsSettings
    settings: PrivateRowsSettings

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """C, D, w and c."""
        return (
            Parameter("item_embedding", "rows", (DIM,)),
            Parameter("own_embedding", "own_rows", (DIM,)),
            Parameter("user_embedding", "own", (DIM,), Normal(0.1)),
            Parameter("user_bias", "own", (), Normal(0.1)),
        )

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one simultaneous step a minibatch."""
        rates = {"item_embedding": ROW_RATE, "own_embedding": ROW_RATE}
        step = Sgd(rates | {"user_embedding": RATE, "user_bias": RATE})
        return (Phase(((step,),), self.settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <w, C_i + D_i> + c."""
        return dot(v.item_embedding + v.own_embedding, v.user_embedding) + v.user_bias[:, None]

    def penalty(self, v: Values, batch: Batch) -> torch.Tensor:
        """Return what keeps C sparse and D apart from it."""
        sparse = v.item_embedding.abs().mean(-1)
        apart = (v.own_embedding - v.item_embedding).square().mean(-1)
        return batch.mean(SPARSE * sparse - APART * apart)
