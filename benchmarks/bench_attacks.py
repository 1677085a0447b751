"""What a published model gives away of its users, and what a few users can do to it, measured.

MovieLens-100K, the settings of PLAIN, or noise where a row has an epsilon. The attacker has the
published model alone, as everybody to whom it is given.

- history: the attacker knows all training items of a user but one. It folds in those that it knows
  and compares two items that the user likes, one of which was held out, by a draw. Whichever ranks
  higher was trained, it says. The figure is the share of users for whom it is right. A coin is
  right for .5.
- membership: half of the users, drawn, train. The attacker knows a person's history. It leaves out
  five items, one at a time, folds in the rest and takes the mean rank of what it left out: a model
  ranks higher what it was trained on. The figures are the area under the curve (.5 for a coin), and
  the share of the members that it finds while it suspects 1 % of the others. The counts that ease
  publishes have an attack of their own: the share of a history's pairs with a count above 0, which
  is 1 for members.
- poisoning: fake users whose clients are honest. All have the same cold item, of 10 to 12 holders,
  and the ten most popular ones. The figures are the share of honest users who get
  the cold item among their ten best, and its median place in their lists.

    python benchmarks/bench_attacks.py --only inference
    python benchmarks/bench_attacks.py --only poisoning --algorithms fedals ease
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from measuring import describe_machine
from numpy.typing import NDArray

from fedrec import Recommender
from fedrec.data import fetch_ml_100k, leave_one_out
from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import Interactions
from fedrec.data.splits import NO_ITEM, UserSplit
from fedrec.settings.schema import Settings
from fedrec.settings.starter import TUNED
from fedrec_lab.simulation import SimulationResult, simulate

PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "fedmf (colr)": ("fedmf", {}),
    "fedals": ("fedals", {"dim": 64}),
    "sketch, k = 64": ("sketch", {"dim": 64}),
    "ease": ("ease", {"regularisation": 100.0}),
}
"""By label an algorithm, and its settings in place of those that `fedrec init` writes."""
NOISY: dict[str, dict[str, Any]] = {
    "fedmf (colr)": {
        "algorithm": {"name": "fedmf", "dim": 32, "learning_rate": 0.5},
        "update": {"structure": "colr", "rank": 4},
        "rounds": {"total": 20},
        "privacy": {"expected_users": 20.0},
    },
    "sketch, k = 64": {
        "algorithm": {"name": "sketch", "dim": 32, "regularisation": 1.0, "form": "plain"},
        "update": {"structure": "dense"},
        "rounds": {"total": 2},
        "privacy": {"expected_users": 943.0},
        "federation": {"minimum_item_users": 1},
    },
    "ease": {
        "algorithm": {"name": "ease"},
        "update": {"structure": "dense"},
        "rounds": {"total": 2},
        "privacy": {"expected_users": 943.0},
        "federation": {"minimum_item_users": 1},
    },
}
"""Settings under noise, from docs/explanation/differential-privacy.md."""
LEFT_OUT = 5
FAKE_ITEMS = 10
TARGETS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published model, with what an attacker can ask it."""

    recommender: Recommender
    catalogue: Catalogue

    @classmethod
    def of(cls, result: SimulationResult) -> Published:
        """Return the version that validation chose."""
        return cls(recommender=result.recommender(), catalogue=result.catalogue)

    def learned(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some items that have a row."""
        ids = self.catalogue.item_ids
        return np.array([i for i in items.tolist() if self.recommender.learned(ids[i])], dtype=int)

    def ranks(self, known: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of other items below each asked one, once `known` is folded in."""
        ids = self.catalogue.item_ids
        history = [ids[item] for item in known.tolist()]
        vector = self.recommender.fold_in(history)
        best, _ = self.recommender.recommend_vector(vector, len(ids), exclude=history)
        place = {item: number for number, item in enumerate(best)}
        return np.array([1.0 - place[ids[item]] / len(best) for item in asked.tolist()])


def history_attack(model: Published, users: UserSplit, seed: int) -> float:
    """Return the share of users of whom a trained item outranks one that was held out."""
    draw = np.random.default_rng(seed)
    right = []
    for user, held_out in enumerate(users.test_items.tolist()):
        trained = model.learned(users.train_of(user))
        if held_out == NO_ITEM or len(trained) < 2 or not len(model.learned(np.array([held_out]))):
            continue
        missing = draw.choice(trained)
        known = trained[trained != missing]
        first, second = model.ranks(known, np.array([missing, held_out]))
        right.append(1.0 if first > second else 0.0)
    return statistics.fmean(right)


def membership_attack(
    model: Published, users: UserSplit, members: NDArray[np.bool_], seed: int
) -> tuple[float, float]:
    """Return the area under the curve, and the share of members found at 1 % false alarms."""
    draw = np.random.default_rng(seed)
    scores = np.full(len(users), np.nan)
    for user in range(len(users)):
        trained = model.learned(users.train_of(user))
        if len(trained) < 2:
            continue
        left_out = draw.permutation(trained)[:LEFT_OUT]
        ranks = [model.ranks(trained[trained != item], np.array([item])) for item in left_out]
        scores[user] = np.mean(ranks)
    return told_apart(scores[members], scores[~members])


def counts_attack(
    pairs: NDArray[np.bool_], users: UserSplit, members: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return the same two figures for the share of a history's pairs with a count above 0.

    Args:
        pairs: whether the published counts are above 0, bool (n_items, n_items).
    """
    scores = np.full(len(users), np.nan)
    for user in range(len(users)):
        items = users.train_of(user)
        items = items[pairs[items, items]]
        if len(items) > 1:
            scores[user] = pairs[np.ix_(items, items)].mean()
    return told_apart(scores[members], scores[~members])


def told_apart(members: NDArray[np.float64], others: NDArray[np.float64]) -> tuple[float, float]:
    """Return the area under the curve, and the share of members above 99 % of the others."""
    inside, outside = members[~np.isnan(members)], others[~np.isnan(others)]
    above = (inside[:, None] > outside).mean() + (inside[:, None] == outside).mean() / 2
    return float(above), float((inside > np.quantile(outside, 0.99)).mean())


def with_fakes(users: UserSplit, target: int, share: float) -> UserSplit:
    """Return the users with fake ones added, which are the given share of all."""
    n_items = int(max(users.train_items.max(), users.test_items.max())) + 1
    n_fakes = round(share * len(users) / (1.0 - share))
    popularity = np.bincount(users.train_items, minlength=n_items).astype(float)
    popularity[target] = 0.0
    others = np.argsort(-popularity, kind="stable")[:FAKE_ITEMS]
    row = np.sort(np.append(target, others))
    none = np.full(n_fakes, NO_ITEM, dtype=np.int64)
    ends = users.train_indptr[-1] + (FAKE_ITEMS + 1) * np.arange(1, n_fakes + 1)
    return UserSplit(
        # Ids stay in their canonical order.
        user_ids=(*users.user_ids, *(f"~{number:06d}" for number in range(n_fakes))),
        train_indptr=np.concatenate([users.train_indptr, ends]),
        train_items=np.concatenate([users.train_items, *[row] * n_fakes]),
        validation_items=np.concatenate([users.validation_items, none]),
        test_items=np.concatenate([users.test_items, none]),
    )


def exposure(result: SimulationResult, users: UserSplit, target: int) -> tuple[float, float]:
    """Return the share of users that get an item among their ten best, and its median place.

    Args:
        users: the honest ones, the first of the run. Those that hold the item don't count.
    """
    honest = [user for user in range(len(users)) if target not in users.train_of(user)]
    ids, item = [users.user_ids[user] for user in honest], result.catalogue.item_ids[target]
    best, _ = result.recommender().recommend(ids, len(result.catalogue))
    places = [1 + row.tolist().index(item) if item in row else len(row) for row in best]
    return float(np.mean(np.array(places) <= 10)), statistics.median(places)


def held_pairs(result: SimulationResult) -> NDArray[np.bool_]:
    """Return which pairs of items the counts that ease published show, bool (n_items, n_items)."""
    shared = result.best.shared
    assert shared.holders is not None
    active = np.nonzero(shared.holders >= result.settings.plan.federation.minimum_item_users)[0]
    found = np.zeros((len(result.catalogue), len(result.catalogue)), dtype=np.bool_)
    rows, columns = np.tril_indices(len(active), -1)
    found[active[rows], active[columns]] = shared.kept["pairs"] > 0
    found |= found.T
    found[active, active] = True
    return found


def variants(chosen: list[str], epsilons: list[float]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a label and sections of settings for each algorithm, without noise and with it."""
    for label, (name, changed) in PLAIN.items():
        if name not in chosen:
            continue
        sections = TUNED[name].model_dump(include={"algorithm", "update", "rounds"})
        yield label, {**sections, "algorithm": {**sections["algorithm"], **changed}}
        for epsilon in epsilons if label in NOISY else ():
            sections = NOISY[label]
            noise = {**sections["privacy"], "mechanism": "gaussian", "epsilon": epsilon}
            yield f"{label}, epsilon {epsilon:g}", {**sections, "privacy": noise}


def trained(
    sections: dict[str, Any], users: UserSplit, catalogue: Catalogue, seed: int
) -> SimulationResult:
    """Return a finished run of these settings over some users."""
    federation = {
        "maximum_users": 8192,
        "minimum_item_users": 10,
        **sections.get("federation", {}),
        "seed": seed,
    }
    settings = Settings.model_validate(
        {
            **sections,
            "federation": federation,
            "protection": {"name": "bfv"},
            "client": {"device": "cpu"},
        }
    )
    return simulate(settings, users=users, catalogue=catalogue)


def drawn_split(interactions: Interactions, catalogue: Catalogue, seed: int) -> UserSplit:
    """Return a split whose held-out items are drawn, so that they differ in nothing else."""
    times = np.random.default_rng(seed).permutation(len(interactions))
    drawn = Interactions(
        user_ids=interactions.user_ids, item_ids=interactions.item_ids, timestamps=times
    )
    return leave_one_out(drawn, catalogue)


def inference(chosen: list[str], epsilons: list[float], seeds: int) -> None:
    """Print both attacks on people."""
    public = fetch_ml_100k()
    catalogue, interactions = public.catalogue, public.read()[0].deduplicated()
    print("| | history | membership | members found at 1 % |\n|---|---|---|---|")
    for label, sections in variants(chosen, epsilons):
        found: dict[str, list[tuple[float, ...]]] = {}
        began = time.perf_counter()
        for seed in range(seeds):
            users = drawn_split(interactions, catalogue, seed)
            whole = Published.of(trained(sections, users, catalogue, seed))
            guessed = history_attack(whole, users, seed)
            members = np.random.default_rng(seed).permutation(len(users)) < len(users) // 2
            half = trained(sections, users.select(np.nonzero(members)[0]), catalogue, seed)
            model = membership_attack(Published.of(half), users, members, seed)
            found.setdefault(label, []).append((guessed, *model))
            if "pairs" in half.best.shared.kept and "privacy" not in sections:
                counts = counts_attack(held_pairs(half), users, members)
                found.setdefault(f"{label}, by its counts", []).append((np.nan, *counts))
        for row, values in found.items():
            cells = [spread(column) for column in zip(*values, strict=True)]
            print(f"| {row} | " + " | ".join(cells) + " |", flush=True)
        print(f"  ({time.perf_counter() - began:.0f} s)", flush=True)


def poisoning(chosen: list[str], epsilons: list[float], seeds: int) -> None:
    """Print how many honest users get a cold item, for shares of fake users."""
    public = fetch_ml_100k()
    catalogue, interactions = public.catalogue, public.read()[0].deduplicated()
    shares = (0.0, 0.01, 0.03, 0.05)
    print("| | " + " | ".join(f"{share:.0%} fake" for share in shares) + " |\n|" + "---|" * 5)
    for label, sections in variants(chosen, epsilons):
        reached: dict[float, list[tuple[float, float]]] = {share: [] for share in shares}
        for seed in range(seeds):
            draw = np.random.default_rng(seed)
            users = leave_one_out(interactions, catalogue)
            holders = np.bincount(users.train_items, minlength=len(catalogue))
            cold = draw.permutation(np.nonzero((holders >= 10) & (holders <= 12))[0])[:TARGETS]
            clean = trained(sections, users, catalogue, seed)
            reached[0.0] += [exposure(clean, users, target) for target in cold.tolist()]
            for share in shares[1:]:
                for target in cold.tolist():
                    fake = with_fakes(users, target, share)
                    poisoned = trained(sections, fake, catalogue, seed)
                    reached[share].append(exposure(poisoned, users, target))
        cells = [
            f"{statistics.fmean(shown):.1%}, place {statistics.fmean(places):.0f}"
            for shown, places in (zip(*found, strict=True) for found in reached.values())
        ]
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


def spread(values: tuple[float, ...] | list[float]) -> str:
    """Return the mean of some values, with the least and the most."""
    if any(np.isnan(values)):
        return ""
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Print a table for each kind of attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("inference", "poisoning"))
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0])
    parser.add_argument(
        "--algorithms", nargs="*", default=["fedmf", "fedals", "sketch", "ease"], help="which ones"
    )
    options = parser.parse_args()
    print(describe_machine())
    for name, attack in (("inference", inference), ("poisoning", poisoning)):
        if options.only in (None, name):
            attack(options.algorithms, options.epsilons, options.seeds)


if __name__ == "__main__":
    main()
