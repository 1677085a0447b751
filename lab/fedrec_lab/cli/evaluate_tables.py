"""`fedrec evaluate --diagnostics`: item tables by their spectra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from fedrec.cli.terminal import print_json
from fedrec.config.algorithm import algorithm_of
from fedrec.durable import write_whole
from fedrec.recommender import MODEL_NAME, USERS_NAME, ModelFile, UsersFile
from fedrec_lab.reports.table_diagnostics import as_text, diagnose_model
from fedrec_lab.simulation.result import SimulationResult

__all__ = ["Tables", "print_folder"]

_FILE = "diagnostics.json"


class Tables:
    """What the trainings of an evaluation left behind; kept in its folder, also on resuming.

    Attributes:
        records: for each training its seed, protocols, round and tables.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self.records: list[dict[str, Any]] = []
        if self._path.exists():
            self.records = json.loads(self._path.read_text(encoding="utf-8"))
        self._lines: list[str] = []

    def take(self, result: SimulationResult) -> None:
        """Measure the tables of a training's best version."""
        plan, best = result.settings.plan, result.best
        found = diagnose_model(plan, len(result.catalogue), best.shared, dict(best.private.tensors))
        under = "+".join(result.protocols)
        self._lines.append(f"seed {plan.federation.seed}, {under}, round {best.round}")
        self._lines.append(as_text(found))
        self.records.append(
            {
                "seed": plan.federation.seed,
                "protocols": list(result.protocols),
                "round": int(best.round),
                "tables": [each.to_record() for each in found],
            }
        )
        write_whole(self._path, (json.dumps(self.records) + "\n").encode(), private=False)

    def to_text(self) -> str:
        """Return what was measured in this call, and where all of it is."""
        return "\n".join([*self._lines, f"Spectra: {self._path}"])


def print_folder(folder: Path, *, as_json: bool) -> None:
    """Print the tables of a run folder's model; own ones where the folder has them."""
    model = ModelFile.load(folder / MODEL_NAME)
    path = folder / USERS_NAME
    private = dict(UsersFile.load(path).private.tensors) if path.exists() else {}
    n_items = next(
        len(model.shared.tensors[entry.name])
        for entry in algorithm_of(model.plan, 1).parameters
        if entry.scope == "rows"
    )
    found = diagnose_model(model.plan, n_items, model.shared, private)
    if as_json:
        print_json({"run": str(folder), "tables": [each.to_record() for each in found]})
        return
    typer.echo(as_text(found))
