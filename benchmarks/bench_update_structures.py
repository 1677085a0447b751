"""A training round of FedMF under every update structure, dense as the measure.

ML-100K with all users, dim 32, two local epochs in batches of 256, on all cores: the work of
`bench_training_round.py`. Full tables, CoLR and SCoLR of rank 8, and SVD and Top-K, of which each
user's change is compressed on its own. A round ends with the summed vector; applying it, where
SVD and Top-K compress once more, is timed apart. Everything in turn, in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from measuring import add_device, describe_device, describe_machine, interleaved, summary
from per_client_loop import ml_100k, plan_of

from fedrec.data.splits import UserSplit
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

ALGORITHM: dict[str, object] = {"dim": 32, "local_epochs": 2, "batch_size": 256}
STRUCTURES: dict[str, dict[str, object]] = {
    "dense": {"structure": "dense"},
    "colr, rank 8": {"structure": "colr", "rank": 8},
    "scolr, rank 8": {"structure": "scolr", "rank": 8},
    "svd, rank 8": {"structure": "svd", "rank": 8},
    "topk, a quarter": {"structure": "topk", "ratio": 0.25},
}


def sides_of(
    plan: Plan, users: UserSplit, n_items: int, device: str
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a round's training and its application, after one that compiles."""
    learner = Learner(plan, n_items, device=device)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    vector: np.ndarray[tuple[int], np.dtype[np.int64]] = learner.contribute(
        "train", 1, shared, users, private
    ).vector
    return (
        lambda: learner.contribute("train", 1, shared, users, private),
        lambda: learner.server.apply("train", 1, shared, vector),
    )


def main() -> None:
    """Print the seconds of each structure and its ratio to dense."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    add_device(parser)
    options = parser.parse_args()
    users, n_items = ml_100k()
    sides: dict[str, Callable[[], object]] = {}
    for name, update in STRUCTURES.items():
        train, apply = sides_of(plan_of(ALGORITHM, **update), users, n_items, options.device)
        sides |= {f"{name}: train": train, f"{name}: apply": apply}
    seconds = interleaved(sides, runs=options.runs)
    print(describe_machine())
    print(describe_device(options.device))
    for name, found in seconds.items():
        pairs = zip(found, seconds["dense: train"], strict=True)
        times = sorted(one / dense for one, dense in pairs)
        print(f"  {name}: {summary(found)}; {times[len(times) // 2]:.2f} x dense's training")


if __name__ == "__main__":
    main()
