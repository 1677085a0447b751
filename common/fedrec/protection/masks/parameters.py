"""How many neighbours a client has, and how many shares give one of its secrets back.

Bell, Bonawitz, Gascon, Lepoint, Raykova, Secure single-server aggregation with (poly)logarithmic
overhead (CCS 2020). Among the k random neighbours of a client the corrupt and the dropped ones
follow hypergeometric laws. By a union bound over all n clients the threshold t must be

- above the number of corrupt neighbours, but for a chance of 2^-40: they could pool their shares.
  Where the coordinator may lie about who dropped out, honest neighbours split into those who give
  shares of one secret and those who give shares of the other; it has both secrets with
  2 t <= k + corrupt, so that 2 t - k must be above that number;
- at most the number of neighbours that remain, but for a chance of 2^-30: else the round fails.

Below 32 clients everybody is everybody's neighbour and keeps a share of its own, with
t = floor(2 n / 3) + 1 as in Bonawitz et al. (CCS 2017), or more where more are corrupt; nothing is
left to chance then.

Who is corrupt is decided by the whole roster: of a list of n clients c are corrupt, where c is the
corrupt share of all members, rounded up.

What it does not give: a proof that the graph of the honest clients is connected, without which
sums of parts of them could be told apart. A random graph of these degrees is connected but for
a chance that is far below the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import SettingsError
from fedrec.protection.tolerance import Tolerance

__all__ = ["FEWEST_CLIENTS", "MAX_CLIENTS", "GraphParameters", "parameters_for"]

FEWEST_CLIENTS = 3
MAX_CLIENTS = 10_000
COMPLETE_BELOW = 32
SECURITY = 2.0**-40
FAILURE = 2.0**-30


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphParameters:
    """The graph of a round.

    Attributes:
        n_clients: participants.
        degree: k, how many other clients hold shares of one client's secrets.
        threshold: t, how many shares give a secret back.
        complete: whether all others hold shares, and every client one of its own.
        quorum: signatures, of all participants, without which nobody gives shares. Where the
            coordinator may lie they are more than half of all and the corrupt ones together, so
            that no two sets of survivors find enough; else the neighbours' own threshold does.
    """

    n_clients: int
    degree: int
    threshold: int
    complete: bool
    quorum: int


@lru_cache(maxsize=256)
def parameters_for(
    n_clients: int, tolerance: Tolerance, *, n_members: int | None = None
) -> GraphParameters:
    """Return the smallest degree that is safe enough, and the threshold that goes with it.

    Args:
        n_members: of the roster, of whom the corrupt share is; by default all take part.

    Raises:
        SettingsError: where there is none; the remedy says what would do.
    """
    if not FEWEST_CLIENTS <= n_clients <= MAX_CLIENTS:
        raise SettingsError(
            f"Masks need {FEWEST_CLIENTS} to {MAX_CLIENTS} clients, not {n_clients}.",
            remedy="With two, each could compute the other's update.",
        )
    # The member that is to be protected is honest.
    corrupt = min(n_clients - 1, tolerance.corrupt_among(max(n_members or 0, n_clients)))
    found = _complete(n_clients, tolerance, corrupt)
    if n_clients >= COMPLETE_BELOW:
        found = _sparse(n_clients, tolerance, corrupt)
    if found is None:
        raise SettingsError(
            f"No graph on {n_clients} clients withstands {tolerance}: {corrupt} of them corrupt.",
            remedy=_remedy(tolerance),
        )
    return found


def _complete(n_clients: int, tolerance: Tolerance, corrupt: int) -> GraphParameters | None:
    dropped = tolerance.dropped_among(n_clients)
    power = n_clients + corrupt if tolerance.malicious else 2 * corrupt
    threshold = max(2 * n_clients // 3, power // 2) + 1
    if n_clients - dropped < threshold:
        return None
    return GraphParameters(
        n_clients=n_clients,
        degree=n_clients - 1,
        threshold=threshold,
        complete=True,
        quorum=threshold,
    )


def _sparse(n_clients: int, tolerance: Tolerance, corrupt: int) -> GraphParameters | None:
    dropped = tolerance.dropped_among(n_clients)
    if _needed(tolerance, corrupt / n_clients) > 1:
        return None
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n_clients)))))
    for degree in _degrees(n_clients):
        captured = _tail(log_factorial, degree, corrupt)
        lost = _tail(log_factorial, degree, dropped)
        # The smallest count of corrupt neighbours that practically never comes about.
        count = max(1, int(np.argmax(n_clients * captured <= SECURITY)))
        threshold = -(-(degree + count) // 2) if tolerance.malicious else count
        if threshold <= degree and n_clients * lost[degree - threshold + 1] <= FAILURE:
            quorum = (n_clients + corrupt) // 2 + 1 if tolerance.malicious else threshold
            return GraphParameters(
                n_clients=n_clients,
                degree=degree,
                threshold=threshold,
                complete=False,
                quorum=quorum,
            )
    return None


def _degrees(n_clients: int) -> Iterator[int]:
    """Yield even degrees, which regular graphs of any size have, and at last all others."""
    yield from range(2, n_clients - 1, 2)
    yield n_clients - 1


def _tail(log_factorial: NDArray[np.float64], degree: int, marked: int) -> NDArray[np.float64]:
    """Return the chances of at least 0, 1, ..., degree + 1 marked ones among the neighbours.

    Args:
        log_factorial: of 0 to n - 1.
        degree: neighbours drawn from the n - 1 others.
        marked: how many of the others are marked.
    """

    def log_choose(whole: int, part: NDArray[np.int64]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = (
            log_factorial[whole] - log_factorial[part] - log_factorial[whole - part]
        )
        return values

    others = len(log_factorial) - 1
    counts = np.arange(max(0, degree - (others - marked)), min(degree, marked) + 1)
    chances = np.exp(
        log_choose(marked, counts)
        + log_choose(others - marked, degree - counts)
        - log_choose(others, np.array([degree]))
    )
    tail = np.zeros(degree + 2)
    tail[counts] = chances
    return np.cumsum(tail[::-1])[::-1]


def _needed(tolerance: Tolerance, corrupt_share: float) -> float:
    """Return what the shares need of all neighbours; nothing works above 1, whatever the size."""
    if tolerance.malicious:
        return corrupt_share + 2 * tolerance.dropout_share
    return corrupt_share + tolerance.dropout_share


def _remedy(tolerance: Tolerance) -> str:
    rule = "corrupt_share + dropout_share"
    if tolerance.malicious:
        rule = "corrupt_share + 2 x dropout_share"
    return f"Lower the shares, so that {rule} is well below 1, or ask more clients."
