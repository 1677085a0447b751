"""Tail at home on a data file: what silos gain by scoring the items that don't travel themselves.

`ease` trains over the items that enough users hold. Each silo chooses the weight of its own scores
on its validation items. The table shows test. The interval is a paired bootstrap over users of
NDCG@10 with the tail minus without it.

    python benchmarks/bench_tail.py
    python benchmarks/bench_tail.py ratings.csv --columns user,item,rating,timestamp --least 3
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from measuring import describe_machine

from fedrec.data import fetch_ml_100k, leave_one_out
from fedrec.data.source import read_users
from fedrec.evaluation.metrics import rates_of_ranks
from fedrec.settings.schema import Settings
from fedrec_lab.reports.comparison_table import paired_bootstrap
from fedrec_lab.simulation import simulate, with_tail


def main() -> None:
    """Print a line for each minimum of own users."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", help="as data.path; MovieLens-100K by default")
    parser.add_argument("--columns", help="of a file without a header, as data.columns")
    parser.add_argument("--minimum-interactions", type=int, default=1)
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--regularisation", type=float, default=30.0, help="lambda of ease")
    parser.add_argument("--least", default="1,2,3", help="client.tail_minimum_users, several")
    options = parser.parse_args()
    print(describe_machine())
    data = {"minimum_interactions": options.minimum_interactions}
    if options.file:
        data["path"] = options.file
    if options.columns:
        data["columns"] = options.columns
    settings = Settings.model_validate(
        {
            "algorithm": {"name": "ease", "regularisation": options.regularisation},
            "update": {"structure": "dense"},
            "protection": {"name": "none"},
            "rounds": {"total": 1},
            "client": {"device": "cpu", "tail": True},
            "data": data,
        }
    )
    if options.file:
        users, catalogue = read_users(settings.data, reader="a benchmark")
    else:
        public = fetch_ml_100k()
        catalogue = public.catalogue
        users = leave_one_out(public.read()[0].deduplicated(), catalogue)
    trained = simulate(settings, users=users, catalogue=catalogue, n_clients=options.silos)
    print(f"{len(users)} users, {len(catalogue)} items, {options.silos} silos")
    for least in map(int, options.least.split(",")):
        client = settings.client.model_copy(update={"tail_minimum_users": least})
        began = time.perf_counter()
        changed = settings.model_copy(update={"client": client})
        found = with_tail(replace(trained, settings=changed)).tail
        seconds = time.perf_counter() - began
        shared, local = (rates_of_ranks(ranks, 10) for ranks in found.test["full"])
        gain = paired_bootstrap(*reversed(found.test["full"])).difference
        print(
            f"least {least}: NDCG@10 {shared.ndcg:.4f}, with the tail {local.ndcg:.4f} "
            f"({local.ndcg / shared.ndcg - 1.0:+.1%}), difference {gain.text()}; "
            f"HR {shared.hr:.4f}, {local.hr:.4f}; {found.weights}; items "
            f"{'/'.join(str(silo.n_rows) for silo in found.silos)}; {seconds:.0f} s; "
            f"{found.verdict(10)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
