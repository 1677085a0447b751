"""Figures of a simulation that need every user: deployed federations release sums only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrec.data.partition import user_groups
from fedrec.evaluation.metrics import ndcg_of_users
from fedrec_lab.reports.figures import quality_by_activity, share_of_clients, spectra
from fedrec_lab.reports.html import Figure
from fedrec_lab.reports.table_diagnostics import diagnose_model
from fedrec_lab.simulation.ranks import UserRanks
from fedrec_lab.simulation.result import SimulationResult

__all__ = ["user_figures"]

_USERS_WITH_TABLES = 50
"""So many users' own tables are enough for the median of their spectra."""


def user_figures(
    result: SimulationResult, ranks: UserRanks, *, protocol: str
) -> tuple[Figure, ...]:
    """Return quality by activity, its spread over clients, and the spectra of item tables.

    A client is a party of the simulation; where there is one party, every user is a client, as in
    the papers.

    Args:
        ranks: of the held-out test items.
        protocol: what they were ranked under, as `marked` writes it.
    """
    at, users = result.settings.evaluation.at, result.users
    measured = np.nonzero(ranks.model >= 0)[0]
    found = []
    if len(measured):
        gains = {
            "the model": ndcg_of_users(ranks.model, at),
            "popularity": ndcg_of_users(ranks.popularity, at),
        }
        activity = np.diff(users.train_indptr)[measured]
        own = {name: values[measured] for name, values in gains.items()}
        found.append(
            Figure(
                name="quality-by-activity",
                plot=quality_by_activity(activity, own, at=at, protocol=protocol),
                caption="Quality on test in fifths of the users, by their training interactions.",
            )
        )
        found.append(
            Figure(
                name="spread-over-clients",
                plot=share_of_clients(_clients(result, measured), gains, at=at, protocol=protocol),
                caption="How quality on test is spread over clients; further right is better.",
            )
        )
    best = result.best
    tables = diagnose_model(
        result.settings.plan,
        len(result.catalogue),
        best.shared,
        dict(best.private.tensors),
        most_users=_USERS_WITH_TABLES,
    )
    if tables:
        found.append(
            Figure(
                name="spectra",
                plot=spectra(tables),
                caption="Singular values of the item tables: one that falls fast uses few of its "
                "dimensions.",
            )
        )
    return tuple(found)


def _clients(result: SimulationResult, measured: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the measured users of each client; a client without any is left out."""
    if result.n_clients == 1:
        return list(measured[:, None])
    groups = user_groups(result.users.user_ids, result.n_clients)
    found = [np.intersect1d(group, measured) for group in groups]
    return [group for group in found if len(group)]
