"""A study: algorithms with the settings that are tried for each, trained and ranked on validation.

Every algorithm has the same number of trials, every trial the same seeds. The trials follow
from the study's seed and earlier results, so a resumed study has the same trials: it takes
finished ones from its folder, and trains the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedrec.cli.terminal import count_of
from fedrec.data.catalogue import Catalogue
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import Rates
from fedrec.ids import digest
from fedrec.plan.travelling_rows import Cells, trained_items
from fedrec.section import as_toml
from fedrec.settings.schema import Settings
from fedrec_lab.comparison.measurement import Parts
from fedrec_lab.reports.comparison_table import RESAMPLES, PairedBootstrap, paired_bootstrap
from fedrec_lab.simulation.checkpoint import simulation_identity
from fedrec_lab.simulation.runner import never
from fedrec_lab.simulation.seeds import (
    OnValidation,
    SeedJob,
    SeedResult,
    run_jobs,
    run_seed,
    settings_of_seeds,
)
from fedrec_lab.tuning.space import (
    Contender,
    Sampler,
    TrialSource,
    TriedSetting,
    Values,
    given_settings,
    settings_to_try,
    value_of,
)

TRIALS = 16
"""Trials of each algorithm."""
MOST_TRIALS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Settings, trained with every seed.

    Attributes:
        number: within its algorithm, from 0 on.
        values: how its settings differ from the starting ones, by dotted key.
        tried: all values of the settings that are tried.
        runs: what each seed reached, by seed.
    """

    algorithm: str
    number: int
    values: Values
    tried: Values
    settings: Settings
    runs: Mapping[int, OnValidation] = field(default_factory=dict)

    @property
    def rates(self) -> Rates | None:
        """Mean rates over the seeds, or None if a training diverged."""
        found = [run.rates for run in self.runs.values()]
        known = [rates for rates in found if rates is not None]
        if not known or len(known) < len(found):
            return None
        return Rates(
            users=known[0].users,
            **{
                name: float(np.mean([getattr(rates, name) for rates in known]))
                for name in ("hr", "recall", "ndcg", "mrr")
            },
        )

    @property
    def ndcg(self) -> float | None:
        """Mean NDCG over the seeds, or None if a training diverged."""
        return None if self.rates is None else self.rates.ndcg

    @property
    def note(self) -> str:
        """Remarks about its trainings."""
        return "; ".join(dict.fromkeys(run.note for run in self.runs.values() if run.note))

    @property
    def text(self) -> str:
        """Its values in a line."""
        found = ", ".join(f"{key}={as_toml(value)}" for key, value in self.values.items())
        return found.replace('"', "") or "starting settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask:
    """The input of a study, and its folder.

    Attributes:
        sampler: None takes the grid where all its combinations are tried, else TPE.
        trials: the maximum number of settings to try for each algorithm. None takes `TRIALS`, or
            all combinations of given values.
        tries: values to try in place of an algorithm's own, as strings like
            ``algorithm.alpha=1,10``.
        jobs: trainings at a time, each in its own process. 1 trains in this process.
        folder: the study's folder.
    """

    users: UserSplit
    catalogue: Catalogue
    folder: Path
    seeds: tuple[int, ...] = (1,)
    sampler: Sampler | None = None
    trials: int | None = None
    tries: tuple[str, ...] = ()
    jobs: int = 1
    n_clients: int = 1
    cells: Cells = ()
    accept_other_arithmetic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The trials of a study, as far as it went.

    Attributes:
        at: the K of the metrics.
        tried: the settings with their values after widening, by algorithm.
        notes: sentences about settings that were left out or widened, and warnings.
        finished: whether it was not stopped before the end.
    """

    at: int
    trials: tuple[Trial, ...]
    tried: Mapping[str, tuple[TriedSetting, ...]]
    notes: tuple[str, ...]
    finished: bool

    def ranked(self) -> list[Trial]:
        """Return the trials, the best on validation first. Of equals the earlier one."""
        return sorted(self.trials, key=lambda trial: 1.0 if trial.ndcg is None else -trial.ndcg)

    def best_of_algorithms(self) -> list[Trial]:
        """Return the best trial of every algorithm, the best first."""
        found: dict[str, Trial] = {}
        for trial in self.ranked():
            found.setdefault(trial.algorithm, trial)
        return list(found.values())

    @property
    def best(self) -> Trial | None:
        """The best trial, or None if every training diverged."""
        return next((trial for trial in self.ranked() if trial.ndcg is not None), None)

    @property
    def popularity(self) -> Rates | None:
        """Rates of popularity on validation."""
        found = (run.popularity for trial in self.trials for run in trial.runs.values())
        return next((rates for rates in found if rates is not None), None)

    @property
    def beats_popularity(self) -> bool:
        """Whether the best trial is better than popularity."""
        best, popularity = self.best, self.popularity
        return bool(best and popularity and (best.ndcg or 0.0) > popularity.ndcg)

    def above(self, other: Trial) -> PairedBootstrap | None:
        """Return the best trial's NDCG minus that of another trial, over validation users."""
        best = self.best
        if best is None or other.ndcg is None:
            return None
        ranks = [np.array([run.ranks for run in trial.runs.values()]) for trial in (best, other)]
        if not (ranks[0] >= 0).any():
            return None
        return paired_bootstrap(*ranks, at=self.at, n_resamples=RESAMPLES)

    def rival(self) -> Trial | None:
        """Return the trial that the best one is compared with.

        It is the best of another algorithm, else the study's own settings, or if these are best
        the second best.
        """
        best = self.best
        others = [trial for trial in self.ranked() if trial is not best and trial.ndcg is not None]
        if best is None or not others:
            return None
        of_others = [trial for trial in others if trial.algorithm != best.algorithm]
        own = [trial for trial in others if trial.number == 0]
        return (*of_others, *own, *others)[0]

    def undecided(self) -> str:
        """Return a warning if validation cannot tell the best trial from its rival, else empty."""
        best, rival = self.best, self.rival()
        if best is None or rival is None:
            return ""
        found = self.above(rival)
        if found is None or found.difference.excludes(0.0):
            return ""
        return (
            f"warning: {found.users} validation users are too few to choose between "
            f"{self.name(best)} and {self.name(rival)}: NDCG@{self.at} differs by "
            f"{found.difference.text().removeprefix('= ')}. Use more data or more --seeds, or take "
            "the cheaper one."
        )

    def name(self, trial: Trial) -> str:
        """Return the name of a trial in this study."""
        several = len({each.algorithm for each in self.trials}) > 1
        return f"{trial.algorithm} ({trial.text})" if several else trial.text


Tell = Callable[[Trial], None]


def run_study(
    contenders: Sequence[Contender],
    task: StudyTask,
    *,
    begin: Callable[[], None] = lambda: None,
    tell: Tell = lambda _: None,
    stop: Callable[[], bool] = never,
) -> Study:
    """Try settings of every algorithm, and rank them on validation.

    Args:
        contenders: the study's own algorithm first.
        begin: called when all is checked, before the first training.
        tell: called with every trial that is done.
        stop: called between rounds. A stopped study resumes in its folder, to the same trials.

    Raises:
        SettingsError: nothing can be tried, or the folder belongs to a study of other data or
            other settings.
        FedrecError: what stopped a training. Divergence does not: it is a trial's result.
    """
    runner = _Runner(contenders, task, tell)
    begin()
    finished = runner.run(stop)
    notes = list(runner.notes)
    for name, each in runner.proposals.items():
        notes += [f"{name}: {note}" for note in each.notes]
        notes += [f"warning: {name}: {note}" for note in each.edge_warnings() if finished]
    return Study(
        at=contenders[0].load({}).evaluation.at,
        trials=tuple(trial for trial in runner.trials if len(trial.runs) == len(task.seeds)),
        tried={name: tuple(each.tried.values()) for name, each in runner.proposals.items()},
        notes=tuple(notes),
        finished=finished,
    )


class _Runner:
    """Trains what the proposals of all algorithms ask for, wave by wave."""

    def __init__(self, contenders: Sequence[Contender], task: StudyTask, tell: Tell) -> None:
        self._loads = {each.algorithm: each.load for each in contenders}
        self._task, self._tell = task, tell
        self.trials: list[Trial] = []
        self.notes: list[str] = []
        self.proposals = {each.algorithm: self._proposals(each) for each in contenders}
        if not any(each.tried for each in self.proposals.values()) and len(contenders) == 1:
            name = contenders[0].algorithm
            raise SettingsError(
                f"There is nothing to try for {name}.",
                remedy="Set --try algorithm.learning_rate=0.5,1,2, for example. Repeat it "
                "for combinations.",
            )
        self._marker = Parts(task.folder, self._identity(contenders[0].load({})), OnValidation)
        self._is_known = self._marker.load("study") is not None

    def _proposals(self, contender: Contender) -> TrialSource:
        task, load = self._task, contender.load
        settings = load({})
        rows = trained_items(
            settings.plan,
            task.users,
            len(task.catalogue),
            n_clients=task.n_clients,
            cells=task.cells,
        )
        n_rows = int(rows.sum())
        if task.tries:
            tried = given_settings(task.tries, load)
            self.notes += [
                f"warning: {contender.algorithm}: {each.key} = {value:g} is above the model's "
                f"{count_of(n_rows, 'row')}. More than one dimension a row costs bytes for nothing."
                for each in tried
                for value in each.values
                if each.key.endswith(".dim") and float(value) > n_rows
            ]
        else:
            space = settings.algorithm.search_space(settings.rounds.total)
            tried, notes = settings_to_try(space, load, n_rows)
            self.notes += [f"{contender.algorithm}: {note}" for note in notes]
        sampler, trials = _chosen_sampler(tried, task, settings)
        return TrialSource(
            tried,
            load,
            sampler=sampler,
            trials=trials,
            seed=settings.federation.seed,
            n_rows=n_rows,
        )

    def _identity(self, settings: Settings) -> str:
        """Return the identity that a folder, or a finished training in it, must have to count."""
        task = self._task
        of_run = simulation_identity(
            settings,
            task.catalogue.fingerprint(),
            task.users,
            n_clients=task.n_clients,
            cells=task.cells,
        )
        return digest("fedrec study v1", of_run, task.n_clients).hex()

    def run(self, stop: Callable[[], bool]) -> bool:
        """Try everything. Return whether it was not stopped before the end."""
        if not self._is_known:
            self._marker.save("study", [])
        while True:
            wave: list[Trial] = []
            for algorithm, proposals in self.proposals.items():
                begun = sum(trial.algorithm == algorithm for trial in self.trials)
                for number, tried in enumerate(proposals.wave(), start=begun):
                    settings = self._loads[algorithm](tried)
                    wave.append(
                        Trial(
                            algorithm=algorithm,
                            number=number,
                            values=proposals.changed(tried),
                            tried=tried,
                            settings=settings,
                        )
                    )
            if not wave:
                return True
            found = self._train(wave, stop)
            self.trials += found
            if stop() or any(len(trial.runs) < len(self._task.seeds) for trial in found):
                return False
            for trial, asked in zip(found, wave, strict=True):
                self.proposals[trial.algorithm].tell(asked.tried, trial.ndcg)

    def _train(self, wave: Sequence[Trial], stop: Callable[[], bool]) -> list[Trial]:
        """Return the trials with what every seed reached, as far as it went."""
        task = self._task
        jobs: list[SeedJob] = []
        places: list[tuple[int, int, str, Parts[OnValidation]]] = []
        runs: list[dict[int, OnValidation]] = [{} for _ in wave]
        for index, trial in enumerate(wave):
            for seed, settings in settings_of_seeds(trial.settings, task.seeds).items():
                identity = self._identity(settings)
                # Named by all that it depends on, so it stays valid whatever else is tried.
                name = f"{trial.algorithm}-seed-{seed}-{identity[:16]}"
                parts = Parts(task.folder, identity, OnValidation)
                known = parts.load(name)
                if known is not None:
                    runs[index][seed] = known[0]
                    continue
                places.append((index, seed, name, parts))
                jobs.append(
                    SeedJob(
                        settings=settings,
                        folder=parts.training_folder(name),
                        n_clients=task.n_clients,
                        cells=task.cells,
                        users=task.users,
                        catalogue=task.catalogue,
                        is_trial=True,
                        accept_other_arithmetic=task.accept_other_arithmetic,
                    )
                )

        def done(place: int, result: SeedResult) -> None:
            if result.validation is None:
                return
            index, seed, name, parts = places[place]
            runs[index][seed] = result.validation
            parts.save(name, [result.validation])
            if len(runs[index]) == len(task.seeds):
                self._tell(replace(wave[index], runs=runs[index]))

        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)
        if task.jobs == 1:
            for place, job in enumerate(jobs):
                if stop():
                    break
                done(place, run_seed(job, lambda _: None, stop))
        elif jobs:
            run_jobs(jobs, jobs=task.jobs, on_result=done, stop=stop)
        return [
            # In the order of the seeds, whichever was done first.
            replace(trial, runs={seed: own[seed] for seed in task.seeds if seed in own})
            for trial, own in zip(wave, runs, strict=True)
        ]


def _chosen_sampler(
    tried: Sequence[TriedSetting], task: StudyTask, own: Settings
) -> tuple[Sampler, int]:
    """Return the sampler and the number of trials of one algorithm.

    Args:
        own: the starting settings, which are a trial of their own if a list lacks their value.

    Raises:
        SettingsError: a grid has more combinations than there are trials.
    """
    is_listed = all(value_of(own, each.key) in each.values for each in tried)
    size = math.prod(len(each.values) for each in tried) + (not is_listed)
    if task.tries and task.trials is None and size > MOST_TRIALS:
        raise SettingsError(
            f"These are {size} combinations. At most {MOST_TRIALS} are tried.",
            remedy="Try fewer values at a time, or set --trials with --sampler tpe.",
        )
    trials = task.trials or (size if task.tries else TRIALS)
    sampler = task.sampler or ("grid" if size <= trials else "tpe")
    if sampler == "grid" and size > trials:
        raise SettingsError(
            f"The grid has {size} combinations, but {trials} trials are made.",
            remedy=f"Set --trials {size}, or --sampler tpe.",
        )
    return sampler, trials
