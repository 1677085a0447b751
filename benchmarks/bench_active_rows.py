"""What items that are never trained cost: a large catalogue beside its trainable items alone.

    python benchmarks/bench_active_rows.py [--users 2000] [--clients 4] [--rounds 3]

Two federations with the same users in one run: one over a catalogue of 105,000 items of which 4,400
are trained, because the others have too few holders, and one over those 4,400 alone. Rounds are
really protected, added up and opened (bfv); a count round, training rounds and the last one, which
measures, are all in the figures. Wanted: at most 1.3 times the seconds and the bytes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from fedrec.clock import SystemClock
from fedrec.config.schema import Settings
from fedrec.data import Catalogue, UserSplit
from fedrec.ids import UserId
from fedrec.simulation.federation import Federation

N_ITEMS, N_TRAINED, LEAST = 105_000, 4_400, 10
PER_USER = 40


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run took.

    Attributes:
        counting: seconds of the count round.
        seconds: of all rounds.
        n_bytes: what all clients uploaded.
    """

    counting: float
    seconds: float
    n_bytes: int


def split_of(n_users: int, held: np.ndarray[tuple[int], np.dtype[np.int64]]) -> UserSplit:
    """Return users who hold some of these items, every one of them often enough to be trained."""
    random = np.random.default_rng(1)
    dealt = np.concatenate(
        [random.permutation(held) for _ in range(-(-n_users * PER_USER // len(held)))]
    )
    train = np.sort(dealt[: n_users * PER_USER].reshape(n_users, PER_USER), axis=1)
    drawn = random.choice(held, (2, n_users))
    return UserSplit(
        user_ids=tuple(UserId(f"user-{number}") for number in range(n_users)),
        train_indptr=np.arange(n_users + 1, dtype=np.int64) * PER_USER,
        train_items=train.reshape(-1).astype(np.int64),
        validation_items=drawn[0].astype(np.int64),
        test_items=drawn[1].astype(np.int64),
    )


def with_rare(users: UserSplit, place: np.ndarray[tuple[int], np.dtype[np.int64]]) -> UserSplit:
    """Return the same users in the large catalogue, where each also holds an item of its own."""
    rare = np.setdiff1d(np.arange(N_ITEMS), place)[: len(users)]
    rows = place[users.train_items].reshape(len(users), -1)
    train = np.sort(np.concatenate([rows, rare[:, None]], axis=1), axis=1)
    return UserSplit(
        user_ids=users.user_ids,
        train_indptr=np.arange(len(users) + 1, dtype=np.int64) * train.shape[1],
        train_items=train.reshape(-1).astype(np.int64),
        validation_items=place[users.validation_items],
        test_items=place[users.test_items],
    )


def run(users: UserSplit, n_items: int, arguments: argparse.Namespace) -> Cost:
    """Play all rounds of a federation."""
    settings = Settings.model_validate(
        {
            "federation": {"maximum_users": 16_384, "minimum_item_users": LEAST},
            "algorithm": {"name": "fedals", "dim": arguments.dim},
            "update": {"structure": "dense"},
            "protection": {"name": "bfv"},
            "rounds": {"total": arguments.rounds},
            "client": {"device": "cpu"},
        }
    )
    catalogue = Catalogue.of([f"item-{row}" for row in range(n_items)])
    federation = Federation(
        settings,
        catalogue,
        users,
        n_clients=arguments.clients,
        protect=True,
        clock=SystemClock(),
    )
    seconds, n_bytes = [], 0
    while not federation.finished:
        began = time.perf_counter()
        report = federation.advance()
        seconds.append(time.perf_counter() - began)
        n_bytes += report.vector_bytes * report.n_clients
    return Cost(counting=seconds[0], seconds=sum(seconds), n_bytes=n_bytes)


def main() -> None:
    """Measure both federations and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--users", type=int, default=2_000)
    arguments = parser.parse_args()
    alone = split_of(arguments.users, np.arange(N_TRAINED))
    place = np.sort(np.random.default_rng(2).choice(N_ITEMS, N_TRAINED, replace=False))
    large = with_rare(alone, place)
    # The first run of a process loads libraries; both sides are measured after it.
    run(alone.select(np.arange(1500)), N_TRAINED, argparse.Namespace(clients=3, rounds=1, dim=8))
    own, all_items = run(alone, N_TRAINED, arguments), run(large, N_ITEMS, arguments)
    print(
        f"{arguments.clients} clients, {arguments.users} users, {arguments.rounds} training rounds"
    )
    print(f"{'':32}{'count round':>14}{'all rounds':>14}{'uploads':>14}")
    for name, cost in (
        (f"{N_TRAINED:,} items", own),
        (f"{N_ITEMS:,} items, {N_TRAINED:,} trained", all_items),
    ):
        mebibytes = cost.n_bytes / 2**20
        print(f"{name:32}{cost.counting:>12.2f} s{cost.seconds:>12.2f} s{mebibytes:>10.1f} MiB")
    ratio = all_items.seconds / own.seconds, all_items.n_bytes / own.n_bytes
    print(f"{'ratio':32}{'':14}{ratio[0]:>12.2f} x{ratio[1]:>10.2f} x")


if __name__ == "__main__":
    main()
