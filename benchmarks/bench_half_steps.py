"""Would fedals be better than ease under noise? A trial in numpy, NDCG@10 on validation.

Each round, a user solves its vector p from the item table on its own machine and scales it to
length 1. It adds g p p^T and q p h^T / sqrt(m), where h is its history with m items among the rows
that travel, and g^2 + q^2 = 1. So its contribution to a round has length 1. A first sum of weighted
counts, as in ease, chooses the rows. All sums are one release: with R rounds, each has a part
(1 - a^2) / R of the squared length. The table that follows is (noisy pulls) (noisy Gram)^-1.

fedals gets the best of all settings tried on the same validation items, with the same draw of the
noise. ease follows its rule, which was fixed before. Three clients take part, and one colludes.

    python benchmarks/bench_half_steps.py
    python benchmarks/bench_half_steps.py interactions.csv --epsilon 3
"""

from __future__ import annotations

import argparse
import itertools
import math
import time

import numpy as np
from measuring import describe_machine
from numpy.typing import NDArray

from fedrec.algorithms.declarations import SumNoise
from fedrec.algorithms.noisy_pairs import planned_release
from fedrec.data import fetch_ml_100k, leave_one_out
from fedrec.data.source import read_users
from fedrec.data.splits import NO_ITEM, UserSplit
from fedrec.plan.planned_noise import mechanism_of
from fedrec.settings.schema import Settings
from fedrec_lab.simulation.runner import simulate

Floats = NDArray[np.float64]
COUNT_SHARE = 0.1
GRAM_SHARE = 0.1
GRID = {
    "rounds": (2, 3),
    "dim": (8, 16),
    "rows": (1.0, 2.0),
    "alpha": (1.0, 5.0),
    "regularisation": (1.0, 4.0),
    "ridge": (0.3, 1.0),
}
"""rows is in units of ease's, ridge in units of the noise."""
FEWEST_ROWS = 110
"""In place of ease's rows if it releases counts alone."""
POPULARITY = (0.0, 0.3, 1.0, 3.0)
"""Weights of the noisy counts in the scores, tried too."""


def half_steps(
    users: UserSplit, n_items: int, noise: float, n_rows: int, draw: np.random.Generator,
    *, rounds: int, dim: int, alpha: float, regularisation: float, ridge: float,
) -> float:  # fmt: skip
    """Return NDCG@10 on validation with the best weight of the counts."""
    history = np.zeros((len(users), n_items))
    history[users.train_owner, users.train_items] = 1.0
    share = math.sqrt((1.0 - COUNT_SHARE) / rounds)
    sizes = np.maximum(history.sum(1), 1.0)
    counts = (history / np.sqrt(sizes)[:, None]).sum(0)
    counts += draw.normal(0.0, noise / math.sqrt(COUNT_SHARE), n_items)
    rows = np.sort(np.argsort(-counts)[:n_rows])
    held = history[:, rows]
    weights = 1.0 / np.sqrt(np.maximum(held.sum(1), 1.0))
    popular = np.maximum(counts[rows], 0.0)
    table = draw.normal(0.0, 1.0, (len(rows), dim))
    table[:, 0] = 3.0 * popular / math.sqrt(max(popular.mean() * popular.max(), 1e-12))
    of_gram, of_pull = math.sqrt(GRAM_SHARE) * share, math.sqrt(1.0 - GRAM_SHARE) * share
    below = noise / of_pull
    for _ in range(rounds):
        vectors = solved(held, table, alpha, regularisation)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        # An entry off the diagonal is in p p^T twice, and travels once.
        around = np.triu(draw.normal(0.0, noise / of_gram, (dim, dim)), 1) / math.sqrt(2.0)
        around = around + around.T + np.diag(draw.normal(0.0, noise / of_gram, dim))
        values, basis = np.linalg.eigh(vectors.T @ vectors + around)
        gram = (basis * np.maximum(values, 0.0)) @ basis.T
        pull = held.T @ (vectors * weights[:, None])
        pull += draw.normal(0.0, below, pull.shape)
        left, sizes_, right = np.linalg.svd(pull, full_matrices=False)
        edge = below * (math.sqrt(len(rows)) + math.sqrt(dim))
        pull = (left * np.sqrt(np.maximum(sizes_**2 - edge**2 / 2.0, 0.0))) @ right
        damped = gram + ridge * below * math.sqrt(len(rows)) * np.eye(dim)
        table = np.linalg.solve(damped, pull.T).T
    if not table.any():
        return 0.0
    found = solved(held, table, alpha, regularisation) @ table.T
    usual = np.abs(found).mean() * np.maximum(counts, 0.0) / max(counts.max(), 1e-12)
    best = 0.0
    for weight in POPULARITY:
        scores = np.tile(weight * usual, (len(users), 1))
        scores[:, rows] += found
        best = max(best, ndcg(scores, history, users.validation_items))
    return best


def solved(held: Floats, table: Floats, alpha: float, regularisation: float) -> Floats:
    """Return every user's p, (n_users, dim)."""
    gram = table.T @ table
    base = gram + regularisation * np.trace(gram) / len(gram) * np.eye(len(gram))
    vectors = np.zeros((len(held), table.shape[1]))
    for user, row in enumerate(held > 0.0):
        own = table[row]
        if len(own):
            system = base + alpha * own.T @ own
            vectors[user] = np.linalg.solve(system, (1.0 + alpha) * own.sum(0))
    return vectors


def ndcg(scores: Floats, history: Floats, items: NDArray[np.int64]) -> float:
    """Return NDCG@10 of one item for each user. Equal scores share their places."""
    who = np.nonzero(items != NO_ITEM)[0]
    scores = np.where(history[who] > 0.0, -np.inf, scores[who])
    own = scores[np.arange(len(who)), items[who]][:, None]
    ranks = (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2.0
    return float(np.where(ranks < 10, 1.0 / np.log2(ranks + 2.0), 0.0).mean())


def main() -> None:
    """Print a line for each epsilon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", help="as data.path; MovieLens-100K by default")
    parser.add_argument("--epsilon", default="3,10")
    parser.add_argument("--draws", type=int, default=3, help="of ease")
    options = parser.parse_args()
    print(describe_machine())
    if options.file:
        data = {"path": options.file, "minimum_interactions": 1}
        users, catalogue = read_users(
            Settings.model_validate({"data": data}).data, reader="a trial"
        )
    else:
        public = fetch_ml_100k()
        catalogue = public.catalogue
        users = leave_one_out(public.read()[0].deduplicated(), catalogue)
    for epsilon in map(float, options.epsilon.split(",")):
        settings = Settings.model_validate(
            {
                "algorithm": {"name": "ease"},
                "update": {"structure": "dense"},
                "federation": {"minimum_item_users": 1, "maximum_users": 16_384},
                "privacy": {
                    "mechanism": "gaussian",
                    "epsilon": epsilon,
                    "expected_users": float(len(users)),
                },
                "rounds": {"minimum_clients": 3, "total": 2},
                "client": {"device": "cpu"},
            }
        )
        mechanism = mechanism_of(settings.plan)
        assert mechanism is not None
        # The other two clients' noise is enough, and the third one's lies on the sum, too.
        noise = mechanism.deviation / mechanism.bound * math.sqrt(1.5)
        planned = SumNoise(
            clip=1.0,
            step=1e-6,
            users=float(len(users)),
            deviation=mechanism.deviation / mechanism.bound,
        )
        of_rows = planned_release(len(catalogue), 2, planned).n_rows or FEWEST_ROWS
        of_ease = []
        for _ in range(options.draws):
            result = simulate(settings, users=users, catalogue=catalogue)
            report = result.best_report
            of_ease.append(0.0 if report is None else report.validation.ndcg)
        began, found = time.perf_counter(), {}
        for chosen in itertools.product(*GRID.values()):
            named = dict(zip(GRID, chosen, strict=True))
            n_rows = min(len(catalogue), int(named.pop("rows") * of_rows))
            draw = np.random.default_rng(1)
            found[chosen] = half_steps(users, len(catalogue), noise, n_rows, draw, **named)
        best = max(found, key=found.__getitem__)
        print(
            f"epsilon {epsilon:g}: ease {np.mean(of_ease):.4f} ({min(of_ease):.4f} to "
            f"{max(of_ease):.4f}); half-steps {found[best]:.4f}, the best of "
            f"{len(found) * len(POPULARITY)} settings: {dict(zip(GRID, best, strict=True))}; "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
