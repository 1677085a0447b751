"""Spectra and row lengths of a model's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms import Algorithm
from fedrec.model.state import SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec.recommender import MODEL_NAME, USERS_NAME, ModelFile, UsersFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuality:
    """Statistics of a table.

    Attributes:
        spectrum: its singular values, descending. A plot shows their logarithms.
    """

    abundance: float
    n95: int
    n99: int
    spectrum: tuple[float, ...]


def singular_values(table: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the singular values of a table (n_items, dim), descending."""
    return np.linalg.svd(np.asarray(table, dtype=np.float64), compute_uv=False)


def information_abundance(table: NDArray[np.floating]) -> float:
    """Return IA, or 0 for a table of zeros, which has no direction."""
    values = singular_values(table)
    return float(values.sum() / values[0]) if len(values) and values[0] > 0 else 0.0


def principal_components(table: NDArray[np.floating], share: float) -> int:
    """Return the fewest components with this share of the variance, or 0 if it has none."""
    rows = np.asarray(table, dtype=np.float64)
    variances = singular_values(rows - rows.mean(axis=0)) ** 2
    total = variances.sum()
    if total <= 0:
        return 0
    # Rounding may leave the total just below 1.
    enough = np.cumsum(variances) >= share * total * (1.0 - 1e-12)
    return int(np.argmax(enough)) + 1


def quality_of(table: NDArray[np.floating]) -> TableQuality:
    """Return the statistics of a table (n_items, dim)."""
    return TableQuality(
        abundance=information_abundance(table),
        n95=principal_components(table, 0.95),
        n99=principal_components(table, 0.99),
        spectrum=tuple(singular_values(table).tolist()),
    )


_MOST_USERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiagnosis:
    """A table of the model, or all users' tables of one name.

    Attributes:
        n_users: the number of users whose tables were measured, or 0 for a shared one.
        quality: the table's statistics, or the medians over users' tables.
    """

    table: str
    n_items: int
    dim: int
    n_users: int
    quality: TableQuality


def diagnose_model(
    plan: Plan,
    n_items: int,
    shared: SharedState,
    private: Mapping[str, Any],
    *,
    most_users: int = _MOST_USERS,
) -> list[TableDiagnosis]:
    """Measure a version's item tables, over the items with enough holders."""
    active = np.arange(n_items)
    if shared.holders is not None:
        active = np.nonzero(shared.holders >= plan.federation.minimum_item_users)[0]
    algorithm = algorithm_of(plan, n_items)
    return diagnose(algorithm, shared.tensors, private, active, most_users=most_users)


def diagnose(
    algorithm: Algorithm,
    shared: Mapping[str, NDArray[np.floating]],
    private: Mapping[str, NDArray[np.floating]],
    active: NDArray[np.int64],
    *,
    most_users: int = _MOST_USERS,
) -> list[TableDiagnosis]:
    """Measure every item table with vectors as rows.

    Args:
        shared, private: a version's tensors. Missing ones are left out.
        active: rows of the trained items.
        most_users: the most users to measure. From more, this number is taken at equal distances.
    """
    found = []
    for entry in algorithm.parameters:
        if len(entry.shape) != 1 or entry.applied:
            # An optimiser's state for a table is not a table.
            continue
        if entry.scope == "rows" and entry.name in shared:
            rows = shared[entry.name][active]
            found.append(_diagnosis(entry.name, rows.shape, 0, quality_of(rows)))
        elif entry.scope == "own_rows" and entry.name in private:
            tables = private[entry.name]
            chosen = np.linspace(0, len(tables) - 1, min(len(tables), most_users), dtype=np.int64)
            # A user that has not started has a table of zeros.
            own = [rows for rows in (tables[user][active] for user in chosen) if rows.any()]
            if own:
                medians = _median([quality_of(rows) for rows in own])
                found.append(_diagnosis(entry.name, own[0].shape, len(own), medians))
    return found


def _diagnosis(
    name: str, shape: tuple[int, ...], n_users: int, quality: TableQuality
) -> TableDiagnosis:
    return TableDiagnosis(
        table=name, n_items=shape[0], dim=shape[1], n_users=n_users, quality=quality
    )


def _median(found: list[TableQuality]) -> TableQuality:
    return TableQuality(
        abundance=float(np.median([each.abundance for each in found])),
        n95=int(np.median([each.n95 for each in found])),
        n99=int(np.median([each.n99 for each in found])),
        spectrum=tuple(np.median([each.spectrum for each in found], axis=0).tolist()),
    )


def as_text(found: Iterable[TableDiagnosis]) -> str:
    """Return a line for each table."""
    lines = []
    for each in found:
        whose = f"median of {each.n_users} users" if each.n_users else "shared"
        quality = each.quality
        lines.append(
            f"{each.table} ({whose}, {each.n_items} x {each.dim}): IA {quality.abundance:.4f}, "
            f"N95 {quality.n95}, N99 {quality.n99}"
        )
    return "\n".join(lines)


def diagnose_folder(folder: Path) -> list[TableDiagnosis]:
    """Measure the tables in a run folder's model, and users' own ones if the folder has them."""
    model = ModelFile.load(folder / MODEL_NAME)
    path = folder / USERS_NAME
    private = dict(UsersFile.load(path).private.tensors) if path.exists() else {}
    n_items = next(
        len(model.shared.tensors[entry.name])
        for entry in algorithm_of(model.plan, 1).parameters
        if entry.scope == "rows"
    )
    return diagnose_model(model.plan, n_items, model.shared, private)
