"""NDCG under noise against epsilon: ease, its counts alone, and sketch, of three clients.

One client of three is taken to collude. Noise is drawn anew in every run, so each line has the mean
of several draws and their standard deviation. Nothing is chosen on data: ease follows its rule, and
sketch has the settings of `docs/explanation/differential-privacy.md`.

    python benchmarks/bench_noise.py
    python benchmarks/bench_noise.py interactions.csv --name ml-1m --into figures
    python benchmarks/bench_noise.py --figure quality-and-epsilon.svg --into figures

With --into a run also writes FIGURES/NAME.json, and the last form draws what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measuring import describe_machine
from quality_figure import QualityPoint, quality_against

from fedrec.data import fetch_ml_100k, leave_one_out
from fedrec.data.source import read_users
from fedrec.data.splits import NO_ITEM, UserSplit
from fedrec.plan.privacy import privacy_price
from fedrec.settings.schema import Settings
from fedrec_lab.simulation.runner import simulate

Sections = Mapping[str, Mapping[str, Any]]


def systems(options: argparse.Namespace) -> Iterator[tuple[str, Sections]]:
    """Yield the compared settings, by name."""
    yield (
        "ease, counts and pairs",
        {"algorithm": {"name": "ease"}, "rounds": {"total": options.rounds}},
    )
    yield "ease, counts alone", {"algorithm": {"name": "ease"}, "rounds": {"total": 1}}
    sketch = {"name": "sketch", "dim": options.dim, "form": "plain"}
    yield (
        f"sketch, k = {options.dim}, lambda {options.regularisation:g}",
        {
            "algorithm": {**sketch, "regularisation": options.regularisation},
            "rounds": {"total": 2},
        },
    )


def main() -> None:
    """Print a line for each epsilon and system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", help="as data.path; MovieLens-100K by default")
    parser.add_argument("--columns", help="of a file without a header, as data.columns")
    parser.add_argument("--epsilon", default="1,3,10")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="rounds.total of ease")
    parser.add_argument("--dim", type=int, default=32, help="k of sketch")
    parser.add_argument("--regularisation", type=float, default=1.0, help="lambda of sketch")
    parser.add_argument("--only", default="", help="systems whose names contain this")
    parser.add_argument("--into", type=Path, help="folder of figures")
    parser.add_argument("--name", default="ml-100k", help="of the data set, in --into")
    parser.add_argument("--figure", type=Path, help="draw what --into has, and measure nothing")
    options = parser.parse_args()
    if options.figure:
        options.figure.write_text(figure_of(options.into) + "\n")
        return
    print(describe_machine())
    data: dict[str, Any] = {"minimum_interactions": 1}
    if options.columns:
        data["columns"] = options.columns
    if options.file:
        data["path"] = options.file
        base = Settings.model_validate({"data": data})
        users, catalogue = read_users(base.data, reader="a benchmark")
    else:
        public = fetch_ml_100k()
        catalogue = public.catalogue
        users = leave_one_out(public.read()[0].deduplicated(), catalogue)
    print(f"{len(users)} users, {len(catalogue)} items")
    measured: list[dict[str, Any]] = []
    for epsilon in map(float, options.epsilon.split(",")):
        for name, sections in systems(options):
            if options.only not in name:
                continue
            fields = {
                "federation": {"minimum_item_users": 1, "maximum_users": 16_384},
                "update": {"structure": "dense"},
                "privacy": {
                    "mechanism": "gaussian",
                    "epsilon": epsilon,
                    "expected_users": float(len(users)),
                },
                "rounds": {"minimum_clients": 3},
                "client": {"device": "cpu"},
                "data": data,
            }
            merged = {key: {**fields.get(key, {}), **sections.get(key, {})} for key in fields}
            merged["algorithm"] = dict(sections["algorithm"])
            settings = Settings.model_validate(merged)
            price = privacy_price(settings.plan, len(catalogue))
            assert price is not None
            began, found, hits = time.perf_counter(), [], []
            for _ in range(options.draws):
                result = simulate(settings, users=users, catalogue=catalogue)
                report = result.best_report
                rates = None if report is None else report.test
                # A model without information is refused: it recommends nothing.
                none = result.uninformed is not None or rates is None
                found.append(0.0 if none else rates.ndcg)
                hits.append(0.0 if none else rates.hr)
            seconds = (time.perf_counter() - began) / options.draws
            deviation = float(np.std(found, ddof=1)) if options.draws > 1 else math.nan
            print(
                f"epsilon {epsilon:g} (accounted {price.facts['epsilon']:.4g})  {name}: NDCG@10 "
                f"{np.mean(found):.4f} (deviation {deviation:.4f}), HR@10 {np.mean(hits):.4f}; "
                f"{seconds:.0f} s a run",
                flush=True,
            )
            label = name.split(", lambda")[0]
            measured.append({"label": label, "epsilon": epsilon, "ndcg": float(np.mean(found))})
    if options.into:
        options.into.mkdir(parents=True, exist_ok=True)
        popularity = popularity_without_noise(users, len(catalogue))
        record = {"popularity": popularity, "rows": measured}
        (options.into / f"{options.name}.json").write_text(json.dumps(record, indent=1))


def popularity_without_noise(users: UserSplit, n_items: int) -> float:
    """Return NDCG@10 on test of the exact counts of holders."""
    counts = np.bincount(users.train_items, minlength=n_items).astype(float)
    found = []
    for user, item in enumerate(users.test_items.tolist()):
        if item != NO_ITEM:
            known = users.train_of(user), [item, users.validation_items[user]]
            others = np.delete(counts, np.concatenate(known))
            rank = (others > counts[item]).sum() + (others == counts[item]).sum() / 2
            found.append(1.0 / math.log2(rank + 2) if rank < 10 else 0.0)
    return float(np.mean(found))


def figure_of(folder: Path) -> str:
    """Return the figure of what a folder has, as SVG."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    points = [
        QualityPoint(label=row["label"], data=name, cost=row["epsilon"], ndcg=row["ndcg"])
        for name, record in found.items()
        for row in record["rows"]
    ]
    lines = {"popularity": {name: record["popularity"] for name, record in found.items()}}
    return quality_against("epsilon", points, lines, joined=True)


if __name__ == "__main__":
    main()
