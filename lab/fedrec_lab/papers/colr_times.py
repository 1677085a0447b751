"""Table 2 of the CoLR paper: minutes on its link and of computation, MovieLens-1M, dim 64.

Section 5.4 estimates 1000 rounds after Wang et al. (A field guide to federated optimization, 2021):

    T_round = S_down / .75 + S_up / .25 + max over clients (7 T_sim + 10) + T_server   seconds

with S in MiB, T_sim what a client takes in a simulation on the authors' machine, and T_server the
server's time. 166.67 of the minutes of computation are the constant 10 seconds of each round.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.updates.settings import UpdateSettings

__all__ = ["DIM", "N_ITEMS", "N_ROUNDS", "TIMES", "TimeRow", "computation_minutes"]

N_ITEMS, DIM, N_ROUNDS = 3706, 64, 1000
_SLOWER = 7.0
_CLIENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """One line of the table.

    Attributes:
        name: method, with the rank or the share of values that is kept.
        update: the same as settings.
        link_minutes, computation_minutes, total_minutes: as printed.
    """

    name: str
    update: UpdateSettings
    link_minutes: float
    computation_minutes: float
    total_minutes: float


def computation_minutes(client_seconds: float, server_seconds: float) -> float:
    """Return the paper's minutes of computation for a round's measured seconds.

    Args:
        client_seconds: T_sim of the slowest client.
        server_seconds: T_server.
    """
    return N_ROUNDS * (_SLOWER * client_seconds + _CLIENT_SECONDS + server_seconds) / 60


def _row(name: str, link: float, computation: float, total: float, **update: object) -> TimeRow:
    return TimeRow(
        name=name,
        update=UpdateSettings.model_validate(update),
        link_minutes=link,
        computation_minutes=computation,
        total_minutes=total,
    )


def _ranks(structure: str, *printed: tuple[int, float, float, float]) -> list[TimeRow]:
    return [
        _row(f"{structure}/rank-{rank}", *minutes, structure=structure, rank=rank)
        for rank, *minutes in printed
    ]


def _ratios(*printed: tuple[int, float, float, float]) -> list[TimeRow]:
    return [
        _row(f"topk/{kept}-of-{DIM}", *minutes, structure="topk", ratio=kept / DIM)
        for kept, *minutes in printed
    ]


TIMES = (
    _row("fedmf", 80.43, 169.07, 249.50, structure="dense"),
    *_ranks(
        "colr",
        (1, 1.26, 169.18, 170.43),
        (2, 2.51, 169.21, 171.72),
        (4, 5.03, 169.27, 174.30),
        (8, 10.05, 169.29, 179.34),
        (16, 20.11, 169.30, 189.41),
        (32, 40.21, 169.38, 209.60),
    ),
    *_ranks(
        "svd",
        (1, 1.26, 169.49, 170.75),
        (2, 2.51, 169.50, 172.02),
        (4, 5.03, 169.53, 174.55),
        (8, 10.05, 169.59, 179.65),
        (16, 20.11, 169.64, 189.74),
        (32, 40.21, 169.60, 209.82),
    ),
    *_ratios(
        (1, 2.51, 169.76, 172.28),
        (2, 5.03, 169.79, 174.81),
        (4, 10.05, 169.82, 179.87),
        (8, 20.11, 169.92, 190.03),
        (16, 40.21, 170.14, 210.35),
    ),
)
