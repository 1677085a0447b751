"""The item tables of a model, measured by their spectra: shared ones, and users' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms import Algorithm
from fedrec.config.algorithm import algorithm_of
from fedrec.config.schema import Plan
from fedrec.evaluation.embedding_quality import TableQuality, quality_of
from fedrec.model.state import SharedState

__all__ = ["TableDiagnosis", "as_text", "diagnose", "diagnose_model"]

_MOST_USERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiagnosis:
    """A table of the model, or all users' tables of one name.

    Attributes:
        n_users: whose tables were measured; 0 for a shared one.
        quality: of users' tables the medians.
    """

    table: str
    n_items: int
    dim: int
    n_users: int
    quality: TableQuality

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def diagnose_model(
    plan: Plan,
    n_items: int,
    shared: SharedState,
    private: Mapping[str, Any],
    *,
    most_users: int = _MOST_USERS,
) -> list[TableDiagnosis]:
    """Measure the item tables of a version over the items that enough users hold."""
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
        shared, private: a version's tensors; those that are missing are left out.
        active: rows of the items that are trained.
        most_users: of more, so many at equal distances stand for all.
    """
    found = []
    for entry in algorithm.parameters:
        if len(entry.shape) != 1 or entry.applied:
            # What an optimiser keeps of a table is none.
            continue
        if entry.scope == "rows" and entry.name in shared:
            rows = shared[entry.name][active]
            found.append(_diagnosis(entry.name, rows.shape, 0, quality_of(rows)))
        elif entry.scope == "own_rows" and entry.name in private:
            tables = private[entry.name]
            chosen = np.linspace(0, len(tables) - 1, min(len(tables), most_users), dtype=np.int64)
            # Who has not begun has a table of zeros.
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
