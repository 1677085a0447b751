"""The search of a study: its algorithms, their settings with values, and which to try next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedrec.algorithms import ALGORITHMS, SearchSpace
from fedrec.cli.terminal import count_of
from fedrec.errors import SettingsError
from fedrec.settings.explain import all_settings
from fedrec.settings.schema import Settings
from fedrec.settings.starter import Starter
from fedrec.settings.validation import UNSET, load_settings
from fedrec_lab.comparison.references.search import Axis

Value = float | str | bool
Values = Mapping[str, Value]
"""Settings by dotted key."""
Load = Callable[[Values], Settings]
"""Returns a study's settings with these values, or raises a `SettingsError`."""
Sampler = Literal["grid", "random", "tpe"]

SAMPLERS: tuple[Sampler, ...] = ("grid", "random", "tpe")
_WAVE = 4
"""Trials that random and TPE draw before they look at results. It isn't the number of processes,
so that any number of processes tries the same settings."""
_STARTING_TRIALS = 8
"""Trials that TPE draws at random."""
_DRAWS = 50
_WIDEST = 1e4
"""How far beyond its ends a list of values may be continued, as a factor."""


def value_of(settings: Settings, key: str) -> Value:
    """Return a setting's value."""
    found: object = settings
    for name in key.split("."):
        found = getattr(found, name)
    assert isinstance(found, (float, int, str))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedSetting:
    """A setting and its values, which have fixed places: widening adds places at the ends.

    Attributes:
        first: the place of the first value.
    """

    key: str
    values: tuple[Value, ...]
    first: int = 0

    @property
    def last(self) -> int:
        """The place of the last value."""
        return self.first + len(self.values) - 1

    def value(self, place: int) -> Value:
        """Return the value at a place."""
        return self.values[place - self.first]

    def place(self, value: Value) -> int:
        """Return the place of a value."""
        return self.first + self.values.index(value)

    def beyond(self, value: Value) -> Value | None:
        """Return the value with which the list continues at an end, or None if it cannot.

        A list of three or more positive numbers continues in its own steps.

        Args:
            value: the last or the first value of the list. Others have no continuation.
        """
        numbers = [each for each in self.values if isinstance(each, (int, float))]
        if len(numbers) < max(3, len(self.values)) or numbers[0] <= 0:
            return None
        step = {self.values[-1]: 1, self.values[0]: -1}.get(value)
        if step is None or isinstance(value, (bool, str)):
            return None
        axis = Axis(
            name=self.key,
            values=tuple(map(float, numbers)),
            start=value,
            widest=(numbers[0] / _WIDEST, numbers[-1] * _WIDEST),
        )
        found = axis.beside(value, step)
        if found is None or not isinstance(value, int):
            return None if found is None else float(f"{found:.6g}")
        return None if round(found) == value else round(found)

    def widened(self, value: Value) -> TriedSetting:
        """Return it with another value before the first or behind the last one."""
        if self.beyond(self.values[-1]) == value:
            return replace(self, values=(*self.values, value))
        return replace(self, values=(value, *self.values), first=self.first - 1)


def settings_to_try(
    space: SearchSpace, load: Load, n_rows: int
) -> tuple[tuple[TriedSetting, ...], list[str]]:
    """Return an algorithm's settings with the values that can be tried, and notes.

    The value of the study's own settings is among them. Values that are refused there are left
    out, and numbers of dimensions above the number of rows.
    """
    own, found, notes = load({}), [], []
    for key, values in space.items():
        if len(values) < 2:
            continue
        beyond = [each for each in values if key.endswith(".dim") and float(each) > n_rows]
        if beyond:
            rows = count_of(n_rows, "row")
            notes.append(f"{key} above {n_rows} is not tried: the model has {rows}.")
        kept = [value for value in values if value not in beyond and _is_valid(load, key, value)]
        tried = with_own(key, kept, value_of(own, key))
        if len(tried.values) > 1:
            found.append(tried)
    return tuple(found), notes


def with_own(key: str, values: Sequence[Value], own: Value) -> TriedSetting:
    """Return the values with the study's own one among them, numbers ascending."""
    kept = list(dict.fromkeys(values))
    if own not in kept:
        kept.append(own)
    if not any(isinstance(each, str) for each in kept):
        kept.sort(key=float)
    return TriedSetting(key=key, values=tuple(kept))


def _is_valid(load: Load, key: str, value: Value) -> bool:
    try:
        load({key: value})
    except SettingsError:
        return False
    return True


def given_settings(given: Sequence[str], load: Load) -> tuple[TriedSetting, ...]:
    """Return the settings in strings like ``algorithm.alpha=1,10``, every value checked alone.

    Raises:
        SettingsError: a string is malformed, or a value is not valid.
    """
    found: list[TriedSetting] = []
    for text in given:
        key, _, listed = (part.strip() for part in text.partition("="))
        values = [value.strip() for value in listed.split(",") if value.strip()]
        if not values or not key or key in {each.key for each in found}:
            raise SettingsError(
                f"--try {text} names no values of its own.",
                remedy="Write each key once, as in --try algorithm.alpha=1,10.",
            )
        typed = [value_of(load({key: value}), key) for value in dict.fromkeys(values)]
        if not any(isinstance(each, str) for each in typed):
            typed.sort(key=float)
        found.append(TriedSetting(key=key, values=tuple(typed)))
    return tuple(found)


class TrialSource:
    """Chooses the values to try next for one algorithm.

    They follow from seed, sampler and earlier results alone. The study's own settings come first.

    Args:
        tried: the settings and their values.
        load: refuses combinations that are not valid, which are never proposed.
        sampler: `grid` proposes every combination. `random` and `tpe` are Optuna's samplers over
            the places in each list of values.
        trials: the maximum number of settings to try. A smaller grid is widened.
    """

    def __init__(
        self,
        tried: Sequence[TriedSetting],
        load: Load,
        *,
        sampler: Sampler,
        trials: int,
        seed: int,
        n_rows: int,
    ) -> None:
        import optuna

        self.tried = {each.key: each for each in tried}
        self.notes: list[str] = []
        self._load, self._trials, self._n_rows = load, trials, n_rows
        self._sampler: Sampler = sampler
        own = load({})
        self._own = {key: value_of(own, key) for key in self.tried}
        self._known: dict[tuple[Value, ...], float] = {}
        """By values in the order of `tried` the result, 0 for what diverged."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        samplers: dict[Sampler, Callable[[], optuna.samplers.BaseSampler]] = {
            "grid": lambda: optuna.samplers.RandomSampler(seed=seed),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
            "tpe": lambda: optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=_STARTING_TRIALS, constant_liar=True
            ),
        }
        self.study = optuna.create_study(direction="maximize", sampler=samplers[sampler]())
        self._waiting: dict[tuple[Value, ...], optuna.Trial | None] = {}
        """Without a trial of Optuna's where a value is in no list, as the file's own may be."""

    @property
    def n_combinations(self) -> int:
        """How many combinations the lists of values have."""
        return math.prod(len(each.values) for each in self.tried.values())

    def changed(self, values: Values) -> Values:
        """Return the values that differ from those of the study's own settings."""
        return {key: value for key, value in values.items() if value != self._own[key]}

    def wave(self) -> list[Values]:
        """Return the values to try next, or none at the end. Tell all results before the next."""
        left = self._trials - len(self._known)
        if left <= 0:
            return []
        if self._known:
            found = [wider for wider in [self._widened()] if wider]
        else:
            found = [each for each in (self._ask(self._own), *self._grid()) if each is not None]
        if self._sampler != "grid":
            while len(found) < min(_WAVE, left) and (drawn := self._drawn()) is not None:
                found.append(drawn)
        return found

    def tell(self, values: Values, ndcg: float | None) -> None:
        """Take a result: mean NDCG on validation, or None if training diverged."""
        key = tuple(values[name] for name in self.tried)
        self._known[key] = ndcg or 0.0
        trial = self._waiting.pop(key)
        if trial is not None:
            self.study.tell(trial, ndcg or 0.0)

    def edge_warnings(self) -> list[str]:
        """Return a warning for every setting whose best value is the last that was tried."""
        best = self._best()
        if best is None or len(self._known) < 2:
            return []
        return [
            f"the best {key}, {value:g}, is at the edge of the tried values. Raise --trials, or "
            "name values beyond it with --try."
            for key, value in best.items()
            if not isinstance(value, (str, bool)) and self._is_edge(key, value)
        ]

    def _best(self) -> dict[str, Value] | None:
        if not self._known:
            return None
        best = max(self._known, key=lambda key: self._known[key])
        return dict(zip(self.tried, best, strict=True))

    def _grid(self) -> Iterator[Values | None]:
        if self._sampler != "grid":
            return
        for chosen in itertools.product(*(each.values for each in self.tried.values())):
            yield self._ask(dict(zip(self.tried, chosen, strict=True)))

    def _ask(self, values: Values) -> Values | None:
        """Return values that are to be tried, or None if they are known or not valid."""
        key = tuple(values[name] for name in self.tried)
        if key in self._known or key in self._waiting or not self._is_valid(values):
            return None
        self._waiting[key] = None
        if self._is_listed(key):
            places = {name: each.place(values[name]) for name, each in self.tried.items()}
            self.study.enqueue_trial(places)
            self._waiting[key] = self.study.ask(self._distributions())
        return values

    def _is_listed(self, key: tuple[Value, ...]) -> bool:
        lists = self.tried.values()
        return all(value in each.values for each, value in zip(lists, key, strict=True))

    def _drawn(self) -> Values | None:
        """Return new values of the sampler, or None if it finds none."""
        import optuna

        for _ in range(_DRAWS):
            seen = [*self._known, *self._waiting]
            if sum(map(self._is_listed, seen)) >= self.n_combinations:
                return None
            trial = self.study.ask(self._distributions())
            values = {name: each.value(trial.params[name]) for name, each in self.tried.items()}
            key = tuple(values.values())
            if key in self._known:
                # The same result again: it has a weight for the sampler, and no cost.
                self.study.tell(trial, self._known[key])
            elif key in self._waiting or not self._is_valid(values):
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                self._waiting[key] = trial
                return values
        return None

    def _widened(self) -> Values | None:
        """Return the best values with one widened beyond its list, or None if there are none."""
        best = self._best()
        if best is None or len(self._known) < min(_WAVE, self.n_combinations):
            return None
        for key, value in best.items():
            wider = self._further(key, value)
            if wider is not None:
                self.tried[key] = self.tried[key].widened(wider)
                self.notes.append(f"{key} was widened to {wider:g}: {value:g} was best.")
                if (asked := self._ask({**best, key: wider})) is not None:
                    return asked
        return None

    def _is_edge(self, key: str, value: float) -> bool:
        """Return whether a best value is at an end of its list and could be further out."""
        if self._further(key, value) is not None:
            return True
        values, best = self.tried[key].values, self._best() or {}
        if len(values) < 2 or not value or self.tried[key].beyond(value):
            return False
        if value not in (values[0], values[-1]):
            return False
        # The list has no steps of its own: it has two values, or begins with 0.
        further = 2 * value if value == values[-1] else type(value)(value / 2)
        too_many = key.endswith(".dim") and further > self._n_rows
        return not too_many and self._is_valid({**best, key: further})

    def _further(self, key: str, value: Value) -> float | None:
        """Return a valid value beyond the best one, if that is the first or last of its list."""
        wider = self.tried[key].beyond(value)
        if wider is None or isinstance(wider, str):
            return None
        if key.endswith(".dim") and wider > self._n_rows:
            return None
        best = self._best() or {}
        return wider if self._is_valid({**best, key: wider}) else None

    def _is_valid(self, values: Values) -> bool:
        try:
            self._load(values)
        except SettingsError:
            return False
        return True

    def _distributions(self) -> dict[str, Any]:
        from optuna.distributions import IntDistribution

        return {name: IntDistribution(each.first, each.last) for name, each in self.tried.items()}


Given = Mapping[str, object]
"""Settings by dotted key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """An algorithm in a study.

    Attributes:
        load: returns its settings with values that are tried.
    """

    algorithm: str
    load: Load


def settings_of_data(data: Path, algorithm: str) -> dict[str, object]:
    """Return the data, federation and algorithm settings of `fedrec init --data DATA`."""
    beside = data.parent / "catalogue.csv"
    starter = Starter(
        algorithm=algorithm,
        data=str(data.resolve()) if data.exists() else str(data),
        catalogue=str(beside.resolve()) if beside.is_file() else "",
    )
    of_machines = ("coordinator.", "client.", "parties.")
    return {
        key: value
        for key, value in starter.values().items()
        if value is not None and not key.startswith(of_machines)
    }


def contenders_of(
    path: Path | None, base: Given, given: Given, algorithms: Sequence[str]
) -> tuple[Contender, ...]:
    """Return the algorithms, that of the settings first if it is among them.

    Another algorithm takes the other sections of the settings, and its own starting settings in
    place of `[algorithm]`, `[update]` and `rounds.total`.

    Args:
        path: the settings file, or None.
        base: settings that come before given ones, in place of a file.
        given: settings of flags. Those of `[algorithm]` are about the settings' own algorithm.
        algorithms: names, or none for the settings' own.

    Raises:
        SettingsError: an algorithm is not known, or cannot be combined with the settings.
    """
    own = load_settings(path, {**base, **given}).algorithm.name
    names = list(dict.fromkeys(algorithms)) or [own]
    unknown = [name for name in names if name not in ALGORITHMS]
    if unknown:
        raise SettingsError(
            f"--algorithms names {unknown[0]!r}, which is not an algorithm.",
            remedy=f"Choose one of: {', '.join(ALGORITHMS)}.",
        )
    # A stable sort: the others stay in their order.
    names.sort(key=lambda name: name != own)
    for_others = {key: value for key, value in given.items() if not key.startswith("algorithm.")}
    found = []
    for name in names:
        values = {**base, **given} if name == own else {**base, **_starting(name), **for_others}
        load: Load = partial(_load, path, values)
        load({})
        found.append(Contender(algorithm=name, load=load))
    return tuple(found)


def _load(path: Path | None, given: Given, values: Values) -> Settings:
    return load_settings(path, {**given, **values})


def _starting(name: str) -> dict[str, object]:
    """Return the starting settings of an algorithm that the settings do not name."""
    kind = ALGORITHMS[name]
    values: dict[str, object] = {
        key: UNSET
        for key in all_settings()
        if key.startswith(("algorithm.", "update.")) or key == "rounds.total"
    }
    values |= {"algorithm.name": name, **(kind.about.advice.starter or {})}
    if kind.about.advice.starter is None:
        space = kind.settings_type.model_validate({}).search_space(0)
        values |= {key: tried[0] for key, tried in space.items() if len(tried) == 1}
    return values
