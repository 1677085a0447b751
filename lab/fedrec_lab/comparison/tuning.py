"""Values of an algorithm's settings, tried one after the other and ranked on validation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedrec.algorithms import ALGORITHMS
from fedrec.data.catalogue import Catalogue
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError, TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.plan.travelling_rows import Cells
from fedrec.settings.schema import Settings
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.runner import never, simulate

Values = Mapping[str, str]
"""Settings as text by dotted key, as flags give them."""

MOST_TRIALS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of settings on validation. Test items have no part in it.

    Attributes:
        values: the settings by dotted key, or empty for those of the file.
        rates: rates on validation of the best version, or None if training diverged.
        round: that version.
        note: why there are no rates, or how many values were clipped.
    """

    values: Values
    rates: Rates | None
    round: int = 0
    note: str = ""


def grid_of(algorithm: str, given: Sequence[str]) -> tuple[Values, ...]:
    """Return the settings to try: all combinations of the given values, or the algorithm's grid.

    Args:
        given: texts like ``algorithm.alpha=1,10``.

    Raises:
        SettingsError: a text is malformed, there are too many combinations, or there is no default
            grid.
    """
    if not given:
        own = ALGORITHMS[algorithm].about.grid
        if not own:
            raise SettingsError(
                f"There is no grid of settings to try for {algorithm}.",
                remedy="Say what to try, as in --try algorithm.learning_rate=0.5,1,2. Repeat it "
                "for combinations.",
            )
        return own
    columns: dict[str, list[str]] = {}
    for text in given:
        key, _, listed = text.partition("=")
        values = [value.strip() for value in listed.split(",") if value.strip()]
        if not values or not key.strip() or key.strip() in columns:
            raise SettingsError(
                f"--try {text} names no values of its own.",
                remedy="Write each key once, as in --try algorithm.alpha=1,10.",
            )
        columns[key.strip()] = list(dict.fromkeys(values))
    found = tuple(
        dict(zip(columns, chosen, strict=True)) for chosen in itertools.product(*columns.values())
    )
    if len(found) > MOST_TRIALS:
        raise SettingsError(
            f"These are {len(found)} combinations. At most {MOST_TRIALS} are tried.",
            remedy="Try fewer values at a time.",
        )
    return found


def try_settings(
    settings: Settings,
    values: Values,
    users: UserSplit,
    catalogue: Catalogue,
    *,
    n_clients: int = 1,
    cells: Cells = (),
    stop: Callable[[], bool] = never,
) -> tuple[Trial, Rates | None] | None:
    """Train one federation with its settings, in one process that has all data.

    Args:
        n_clients: parties among which the users are divided.

    Returns:
        the trial and popularity's rates on validation. None when it was stopped.
    """
    try:
        result = simulate(
            settings,
            n_clients=n_clients,
            cells=cells,
            users=users,
            catalogue=catalogue,
            stop=stop,
        )
    except TrainingError as error:
        return Trial(values=values, rates=None, note=f"diverged: {error.message}"), None
    if not result.finished:
        return None
    evaluation = result.evaluation
    popularity = None if evaluation is None else evaluation.rates("popularity", "validation")
    report = result.best_report
    trial = Trial(
        values=values,
        rates=None if report is None else report.validation,
        round=int(result.best.round),
        note=_clipped(result.rounds),
    )
    return trial, popularity


def tried(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials, the best on validation first. Of equals the earlier one."""
    return sorted(trials, key=lambda trial: -trial.rates.ndcg if trial.rates else 1.0)


def _clipped(rounds: Sequence[RoundReport]) -> str:
    most = max((report.clipped_values for report in rounds), default=0)
    return f"{most} values clipped in a round" if most else ""
