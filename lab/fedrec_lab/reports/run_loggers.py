"""Loggers send a simulation's settings and rounds to a tracker, as it runs.

A logger gets what the run folder's log has: the plan's settings, and the numbers of `rounds.jsonl`.
Both are about all users together. Nothing else reaches it: no vector, rank, history, id or path.

A package adds a logger by an entry point of the group `fedrec.loggers`.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, cast

import typer

from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import SPLITS
from fedrec.extras import require
from fedrec.settings.schema import Settings
from fedrec_lab.reports.round_report import RoundReport

ENTRY_POINTS = "fedrec.loggers"
_PROJECT = "fedrec"
_PARAMS_AT_ONCE = 100
"""MLflow's limit for a request."""


class RunLogger(ABC):
    """Sends one run to a tracker. Any exception ends the logger, never the run."""

    modules: ClassVar[tuple[str, ...]] = ()
    """The modules that it imports, checked before the run."""

    @abstractmethod
    def begin(self, name: str, settings: Mapping[str, str], folder: Path | None) -> None:
        """Begin a run.

        Args:
            name: the run's name.
            settings: the plan, by dotted key.
            folder: the run folder, if there is one.
        """

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a round."""

    @abstractmethod
    def end(self, *, finished: bool) -> None:
        """End the run, which can be resumed unless it finished."""


class MlflowLogger(RunLogger):
    """Logs to MLflow at `MLFLOW_TRACKING_URI`, in `MLFLOW_EXPERIMENT_NAME` or fedrec."""

    modules = ("mlflow",)

    def begin(self, name: str, settings: Mapping[str, str], folder: Path | None) -> None:
        """Create the run. See `RunLogger.begin`."""
        # By default MLflow tries for minutes, in which the run would wait.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run: str = self._client.create_run(number, run_name=name).info.run_id
        params = [Param(key, value) for key, value in settings.items()]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=params[start : start + _PARAMS_AT_ONCE])

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log a round in one request."""
        now = int(time.time() * 1000)
        metrics = [self._metric(key, value, now, step) for key, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, *, finished: bool) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class TensorBoardLogger(RunLogger):
    """Writes TensorBoard's event files into `tensorboard/` of the run folder.

    Without a run folder it writes to `TENSORBOARD_LOGDIR`, or runs/, under the run's name.
    """

    modules = ("tensorboardX",)

    def begin(self, name: str, settings: Mapping[str, str], folder: Path | None) -> None:
        """Open the file. See `RunLogger.begin`."""
        from tensorboardX import SummaryWriter

        base = Path(os.environ.get("TENSORBOARD_LOGDIR", "runs"))
        place = base / name if folder is None else folder / "tensorboard"
        self._writer = SummaryWriter(str(place))
        rows = "\n".join(f"    {key} = {value}" for key, value in settings.items())
        self._writer.add_text("settings", rows)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write a round."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def end(self, *, finished: bool) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger(RunLogger):
    """Logs to Weights & Biases. Its own variables, such as WANDB_MODE=offline, say where."""

    modules = ("wandb",)

    def begin(self, name: str, settings: Mapping[str, str], folder: Path | None) -> None:
        """Start the run. See `RunLogger.begin`."""
        import wandb

        # Otherwise it would also send code, console output, host name and the machine's load.
        private = wandb.Settings(
            console="off", disable_code=True, disable_git=True, silent=True, x_disable_meta=True,
            x_disable_stats=True, x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=name,
            config=dict(settings),
            dir=None if folder is None else str(folder),
            settings=private,
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log a round."""
        self._run.log(dict(values), step=step)

    def end(self, *, finished: bool) -> None:
        """Finish the run, as failed if it was stopped."""
        self._run.finish(exit_code=0 if finished else 1)


_OWN: Mapping[str, type[RunLogger]] = {
    "mlflow": MlflowLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
}


def loggers_of(names: Sequence[str]) -> dict[str, type[RunLogger]]:
    """Return loggers by name, once their packages were found.

    Raises:
        SettingsError: a name is unknown, its package isn't installed, or what a package adds is
            not a logger.
    """
    found: dict[str, type[RunLogger]] = {}
    for name in names:
        kind: Any = _OWN.get(name) or _added(name)
        require(*kind.modules)
        found[name] = kind
    return found


def _added(name: str) -> type[RunLogger]:
    """Return the logger that an installed package adds under a name."""
    added = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in added:
        known = ", ".join((*_OWN, *added))
        raise SettingsError(f"There is no logger {name!r}.", remedy=f"Choose from {known}.")
    where = added[name].value
    try:
        kind = added[name].load()
        if not issubclass(kind, RunLogger):
            raise TypeError("it is not a RunLogger")
    except Exception as error:
        raise SettingsError(
            f"The logger {name!r} is {where}, which cannot be used: {error}.",
            remedy="Correct its package, or uninstall it.",
        ) from error
    return cast("type[RunLogger]", kind)


class RunLoggers:
    """A run's loggers. One that fails is dropped with a warning that names it.

    Args:
        names: the loggers.
        folder: the run folder, if there is one.
    """

    def __init__(self, names: Sequence[str], settings: Settings, folder: Path | None) -> None:
        self._live = {each: kind() for each, kind in loggers_of(names).items()}
        self._step = 0
        name = settings.federation.name if folder is None else folder.resolve().name
        plan = {
            f"{section}.{key}": str(value)
            for section, values in settings.plan.model_dump().items()
            for key, value in values.items()
        }
        self._each(lambda logger: logger.begin(name, plan, folder))

    def round(self, report: RoundReport) -> None:
        """Log a round."""
        self._step = int(report.round)
        values = _numbers(report)
        self._each(lambda logger: logger.log(values, self._step))

    def end(self, best: RoundReport | None = None, *, finished: bool = False) -> None:
        """End the run.

        Args:
            best: the round that measured the chosen version.
        """
        if best is not None and best.test is not None:
            chosen = {f"chosen/test/{key}": float(rate) for key, rate in asdict(best.test).items()}
            self._each(lambda logger: logger.log(chosen, self._step))
        self._each(lambda logger: logger.end(finished=finished))
        self._live.clear()

    def _each(self, call: Callable[[RunLogger], None]) -> None:
        for name, logger in list(self._live.items()):
            try:
                call(logger)
            except Exception as error:
                del self._live[name]
                reason = shorten(str(error), 300).rstrip(".")
                typer.echo(
                    f"warning: the logger {name} failed and gets nothing more of this run: "
                    f"{type(error).__name__}: {reason}. The run continues.",
                    err=True,
                )


def _numbers(report: RoundReport) -> dict[str, float]:
    """Return a round's numbers by name, as in `rounds.jsonl`."""
    record = asdict(report)
    measured = {"": record, **{f"{each['protocol']}/": each for each in record.pop("also")}}
    found = {
        f"{protocol}{split}/{key}": value
        for protocol, values in measured.items()
        for split in SPLITS
        for key, value in (values[split] or {}).items()
    }
    found |= {key: value for key, value in record.items() if isinstance(value, int | float)}
    del found["round"]
    return {key: float(value) for key, value in found.items()}
