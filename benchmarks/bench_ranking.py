"""Full ranking of 6,040 users' held-out items among 3,706 items, as many as MovieLens-1M has.

Made-up users with 165 items each and random scores. `rank` counts who stands before the held-out
item for validation and test, from scores at hand; `score and rank` begins with vectors of 64
values. Drawing the candidates of `sampled` happens once in a run and is timed apart.
"""

from __future__ import annotations

import argparse
from types import MappingProxyType

import numpy as np
import torch
from measuring import add_device, describe_device, describe_machine, interleaved, summary

from fedrec.data.splits import UserSplit
from fedrec.evaluation.protocols import Ranking, draw_candidates
from fedrec.ids import UserId
from fedrec.model.state import PrivateState
from fedrec.plan.schema import Plan
from fedrec.training.device import choose_device
from fedrec.training.evaluator import Evaluator
from fedrec.training.learner import Learner

PER_USER = 165


def made_up(n_users: int, n_items: int) -> UserSplit:
    """Return users with distinct random items, the last two held out."""
    random = np.random.default_rng(0)
    items = np.argsort(random.random((n_users, n_items)), axis=1)[:, :PER_USER]
    train = np.sort(items[:, :-2], axis=1)
    return UserSplit(
        user_ids=tuple(UserId(f"u{number}") for number in range(n_users)),
        train_indptr=np.arange(0, train.size + 1, train.shape[1]),
        train_items=train.ravel(),
        validation_items=items[:, -2].copy(),
        test_items=items[:, -1].copy(),
    )


def main() -> None:
    """Time ranking alone, with scoring, and drawing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--items", type=int, default=3706)
    parser.add_argument("--runs", type=int, default=7)
    add_device(parser)
    options = parser.parse_args()
    print(describe_machine())
    print(describe_device(options.device))
    users = made_up(options.users, options.items)
    device, rows = choose_device(options.device), np.arange(options.users)
    scores = torch.from_numpy(
        np.random.default_rng(1).normal(size=(options.users, options.items)).astype(np.float32)
    ).to(device)
    ranking = Ranking(users, options.items, seed=1, device=device)
    plan = Plan.model_validate(
        {
            "federation": {"minimum_item_users": 1},
            "algorithm": {"dim": 64},
            "update": {"structure": "dense"},
        }
    )
    learner = Learner(plan, options.items, device=options.device)
    evaluator = Evaluator(learner.local)
    shared = learner.server.initial_shared()
    vectors = learner.local.initial_private(users).tensors
    private = PrivateState(MappingProxyType(dict(vectors)))

    def rank(protocol: str) -> None:
        for split in ("validation", "test"):
            ranking.ranks(scores, rows, split, protocol)

    seconds = interleaved(
        {
            "rank, full, validation and test": lambda: rank("full"),
            "rank, sampled, candidates drawn": lambda: rank("sampled"),
            "score and rank, full, validation and test": lambda: evaluator.measure(
                shared, users, private, references=False, number=2
            ),
            "draw 99 candidates a user": lambda: draw_candidates(
                users, options.items, seed=1, device=device
            ),
        },
        runs=options.runs,
    )
    print(f"{options.users:,} users x {options.items:,} items, {torch.get_num_threads()} threads")
    for name, values in seconds.items():
        print(f"  {name}: {summary(values)}")


if __name__ == "__main__":
    main()
