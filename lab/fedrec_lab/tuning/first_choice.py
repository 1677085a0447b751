"""Choose a few starting settings on a user's own validation items, in about a minute.

`fedrec init --auto` proposes algorithm and sizes by the data's shape. This trains them on the data,
tries other regularisation, and tail at home. A setting is changed only if the 95 % interval of
NDCG's change, a paired bootstrap over validation users, lies above 0. The same data and seed give
the same choice if there is time for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrec.clock import Clock, SystemClock
from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import user_groups
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError, TrainingError
from fedrec.evaluation.metrics import rate_of_users
from fedrec.section import as_toml
from fedrec.settings.validation import load_settings
from fedrec.training.learner import Learner
from fedrec_lab.reports.comparison_table import RESAMPLES, paired_bootstrap
from fedrec_lab.simulation.result import SimulationResult, user_ranks
from fedrec_lab.simulation.runner import simulate
from fedrec_lab.simulation.silos_tail import check_tail, measure_silos
from fedrec_lab.tuning.space import TriedSetting, Value, value_of, with_own

SECONDS = 60.0
"""The time for all of it. It is looked at after every round, and after every block of users."""
TRAINING_SECONDS = 45.0
"""Trainings stop after the round in which this time ends. Tail at home has the rest."""
_SAMPLE = 512
"""Size of a matrix whose inversion is timed, to know how long those of the silos take."""
_NEVER = {"evaluation.every_rounds": 1_000_000}
"""Rounds aren't measured, so that the last version counts: this takes a third of the time."""
_KEYS = ("algorithm.regularisation", "algorithm.alpha")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstChoice:
    """The settings that validation chose, and why.

    Attributes:
        values: settings by dotted key. Empty if the starting ones are kept.
        reasons: sentences.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tried:
    """A training with some values in place of the starting ones, and its validation ranks."""

    values: Mapping[str, Value]
    result: SimulationResult
    ranks: NDArray[np.float64]
    ndcg: float


class _TimeIsUp(Exception):
    """The time ended while tail at home was tried."""


class _Study:
    def __init__(
        self,
        values: Mapping[str, object],
        data: tuple[UserSplit, Catalogue],
        n_clients: int,
        tell: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._values, self._n_clients, self._tell, self._clock = values, n_clients, tell, clock
        self._users, self._catalogue = data
        began = clock.now()
        self._end, self._tail_end = began + TRAINING_SECONDS, began + SECONDS
        self._rival: _Tried | None = None
        self.settings = load_settings(values=dict(values), environ={})
        self.at = self.settings.evaluation.at

    def is_late(self) -> bool:
        return self._clock.now() >= self._end

    def train(self, changed: Mapping[str, Value]) -> _Tried | None:
        """Return a training, or None if it diverged, or values or time didn't allow it."""
        if self.is_late():
            return None
        try:
            result = simulate(
                load_settings(values={**self._values, **_NEVER, **changed}, environ={}),
                users=self._users,
                catalogue=self._catalogue,
                n_clients=self._n_clients,
                stop=self.is_late,
                progress=False,
            )
        except (SettingsError, TrainingError):
            return None
        if not result.finished:
            return None
        ranks = user_ranks(result, "validation").model
        rates = rate_of_users(ranks, self.at)[ranks >= 0]
        ndcg = float(rates.mean()) if len(rates) else 0.0
        named = ", ".join(f"{key} = {as_toml(value)}" for key, value in changed.items())
        self._tell(f"{named or 'starting settings'}: NDCG@{self.at} on validation {ndcg:.4f}")
        found = _Tried(values=changed, result=result, ranks=ranks, ndcg=ndcg)
        if changed and (self._rival is None or ndcg > self._rival.ndcg):
            self._rival = found
        return found

    def climb(self, best: _Tried, key: str, tried: TriedSetting) -> tuple[_Tried, int]:
        """Follow a setting from its value in both directions while validation improves.

        Returns the best training, and how many others were tried.
        """
        n_tried = 0
        for step in (-1, 1):
            moved = False
            while True:
                value = best.values.get(key, value_of(self.settings, key))
                place = tried.values.index(value) + step
                if not 0 <= place < len(tried.values):
                    wider = tried.beyond(value)
                    tried = tried if wider is None else tried.widened(wider)
                    place = -1 if step > 0 else 0
                beside = tried.values[place]
                found = None if beside == value else self.train({**best.values, key: beside})
                n_tried += found is not None
                if found is None or found.ndcg <= best.ndcg:
                    break
                best, moved = found, True
            if moved:
                break
        return best, n_tried

    def regularisation(self, start: _Tried) -> tuple[_Tried, str]:
        """Return the training to keep, and the reason."""
        space = self.settings.algorithm.search_space(self.settings.rounds.total)
        keys = [key for key in _KEYS if len(space.get(key, ())) > 1]
        if not keys:
            return start, ""
        best, n_tried = start, 0
        for key in keys:
            own = value_of(self.settings, key)
            best, more = self.climb(best, key, with_own(key, space[key], own))
            n_tried += more
        names = " and ".join(keys)
        late = " The time was up before all neighbours were tried." * self.is_late()
        rival = self._rival if best is start else best
        if rival is None:
            return start, f"{names} stayed as they are.{late}"
        named = ", ".join(f"{key} = {as_toml(value)}" for key, value in rival.values.items())
        gain = paired_bootstrap(rival.ranks, start.ranks, at=self.at, n_resamples=RESAMPLES)
        by = gain.difference.text().removeprefix("= ")
        shown = f"NDCG@{self.at} on {gain.users} validation items by {by}"
        if best is start:
            return start, (
                f"Of {n_tried} other values of {names}, none was better on validation. The best of "
                f"them, {named}, changes {shown}.{late}"
            )
        if gain.difference.low > 0.0:
            return best, f"{named} changes {shown} against the proposed value.{late}"
        return start, (
            f"{named} looked best on validation, but the proposed value is kept. It changes "
            f"{shown}: too few users to choose.{late}"
        )

    def tail(self, best: _Tried) -> tuple[bool, str]:
        """Return whether validation shows that tail at home helps, and a sentence."""
        client = best.result.settings.client.model_copy(update={"tail": True})
        settings = best.result.settings.model_copy(update={"client": client})
        try:
            check_tail(settings, len(self._users), self._n_clients)
        except SettingsError as error:
            return False, f"client.tail wasn't tried. {error.message}"
        plan = settings.plan
        try:
            self._check_inversions()
            found = measure_silos(
                Learner.of(settings.client, plan, len(self._catalogue)),
                best.result.best.shared,
                best.result.best.private,
                self._users,
                user_groups(self._users.user_ids, self._n_clients),
                client.tail_minimum_users,
                # Test items aren't ranked.
                protocols=(),
                check=self._check_time,
            )
        except _TimeIsUp:
            return False, (
                f"client.tail stays false: trying it doesn't fit into {SECONDS:g} s. `fedrec "
                "evaluate` with client.tail = true takes the time that it needs."
            )
        helps = found.helps(self.at)
        sentence = f"client.tail is {as_toml(helps)}, tried with {self._n_clients} clients: "
        return helps, sentence + found.verdict(self.at)

    def _check_inversions(self) -> None:
        """Stop before the silos' matrices are inverted, which can't be interrupted, if time is up.

        The time is that of a small matrix, times the cube of the size.
        """
        began = self._clock.now()
        np.linalg.inv(np.eye(_SAMPLE))
        one = self._clock.now() - began
        scale = (len(self._users) / self._n_clients / _SAMPLE) ** 3
        if self._clock.now() + one * scale * self._n_clients >= self._tail_end:
            raise _TimeIsUp

    def _check_time(self) -> None:
        if self._clock.now() >= self._tail_end:
            raise _TimeIsUp


def choose(
    values: Mapping[str, object],
    users: UserSplit,
    catalogue: Catalogue,
    *,
    n_clients: int,
    tell: Callable[[str], None],
    clock: Clock | None = None,
) -> FirstChoice:
    """Return what validation changes of starting settings, with the reasons.

    Args:
        values: the starting settings, by dotted key.
        n_clients: clients among which the users are dealt, for tail at home.
        tell: called with a line for each training.
    """
    study = _Study(values, (users, catalogue), n_clients, tell, clock or SystemClock())
    tell(f"Choosing on validation. This takes about {SECONDS:g} s, or one round if that is longer.")
    start = study.train({})
    if start is None:
        return FirstChoice(
            reasons=(
                "Nothing was chosen on validation: training didn't end within "
                f"{TRAINING_SECONDS:g} s, or failed. `fedrec tune` takes the time that it needs, "
                "and tells why it fails.",
            )
        )
    if not (start.ranks >= 0).any():
        return FirstChoice(
            reasons=("Nothing was chosen on validation: no user has a validation item.",)
        )
    best, of_values = study.regularisation(start)
    helps, of_tail = study.tail(best)
    chosen = {**best.values, **({"client.tail": True} if helps else {})}
    return FirstChoice(values=chosen, reasons=tuple(filter(None, (of_values, of_tail))))
