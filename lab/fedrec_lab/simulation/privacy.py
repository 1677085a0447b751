"""Who may still train in a simulation, and what its sums have cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrec.config.noise import mechanism_of
from fedrec.config.schema import Plan
from fedrec.ids import RoundId
from fedrec.wire.messages import RoundKind
from fedrec_lab.simulation.parties import select_users

__all__ = ["PrivacyAccount"]


class PrivacyAccount:
    """Counts every user's training rounds, as each client does in a federation.

    Coins follow from the public seed here, so that charging the rounds of a checkpoint again
    brings back the counts.

    Args:
        user_keys: identities of all users, int64 (n_users,).
    """

    def __init__(self, plan: Plan, user_keys: NDArray[np.int64]) -> None:
        self._plan = plan
        self._mechanism = mechanism_of(plan)
        self._user_keys = user_keys
        self._rounds = np.zeros(len(user_keys), dtype=np.int64)
        self._n_sums = 0

    @property
    def is_on(self) -> bool:
        """Whether sums carry noise."""
        return self._mechanism is not None

    @property
    def allows_another(self) -> bool:
        """Whether the budget has room for one more sum."""
        most = None if self._mechanism is None else self._mechanism.most_sums
        return most is None or self._n_sums < most

    def participants(self, kind: RoundKind, round_id: RoundId) -> NDArray[np.bool_] | None:
        """Return who takes part in a round, bool (n_users,), or None for everybody."""
        coins = select_users(
            self._user_keys,
            seed=self._plan.federation.seed,
            round_id=round_id,
            fraction=self._plan.rounds.user_fraction,
            counted=self._plan.rounds.user_sampling == "count",
        )
        if self._mechanism is None or kind != "train":
            return coins
        may = self._rounds < self._mechanism.rounds_per_user
        return may if coins is None else may & coins

    def charge(self, kind: RoundKind, round_id: RoundId) -> None:
        """Count a training round for everybody who takes part in it."""
        chosen = self.participants(kind, round_id)
        if self._mechanism is None or kind != "train" or chosen is None:
            return
        self._rounds += chosen
        self._n_sums += 1
