"""Quality of the demo's federation on MovieLens-100K, against popularity and unrounded sums.

Three seeds. Every run chooses its round on validation; the table shows test. The interval is a
paired bootstrap over users of NDCG@10 minus popularity's. The second table repeats the first seed
with a grid so fine and a range so wide that float32 values pass through it unchanged.
"""

from __future__ import annotations

import argparse

from measuring import add_device, describe_device, describe_machine

from fedrec.data import fetch_ml_100k, leave_one_out
from fedrec.settings.schema import Settings
from fedrec_lab.demo.demonstration import DemoOptions
from fedrec_lab.reports.result_row import ResultRow, plain_table, reference_rows
from fedrec_lab.simulation.result import against_popularity, user_ranks
from fedrec_lab.simulation.runner import simulate


def main() -> None:
    """Print the result table, the intervals and the effect of rounding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=DemoOptions().rounds)
    parser.add_argument("--seeds", type=int, default=3)
    add_device(parser)
    options = parser.parse_args()
    client = {"client": {"device": options.device}}
    print(describe_machine())
    print(describe_device(options.device))
    data = fetch_ml_100k()
    interactions, _ = data.read()
    users = leave_one_out(interactions.deduplicated(), data.catalogue)
    chosen, references = [], None
    for seed in range(1, options.seeds + 1):
        plan = DemoOptions(protection="none", seed=seed, rounds=options.rounds).plan()
        settings = Settings.model_validate(plan.model_dump() | client)
        result = simulate(settings, users=users, catalogue=data.catalogue)
        report = result.best_report
        chosen.append(report.test)
        found = against_popularity(user_ranks(result), at=result.settings.evaluation.at)
        difference, ratio = found.difference, found.ratio
        print(
            f"seed {seed}: version {result.best.round}, validation NDCG "
            f"{result.best.validation_ndcg:.4f}, test HR {report.test.hr:.4f} NDCG "
            f"{report.test.ndcg:.4f}; minus popularity {difference.estimate:.4f} "
            f"[{difference.low:.4f}, {difference.high:.4f}], ratio {ratio.estimate:.2f} "
            f"[{ratio.low:.2f}, {ratio.high:.2f}]; clipped values in the last round "
            f"{result.rounds[-2].clipped_values}",
            flush=True,
        )
        references = references or reference_rows(result.evaluation)
    rows = [ResultRow(label="fedmf + colr, as in the demo", samples=tuple(chosen)), *references]
    print(plain_table(rows, at=10))
    plan = DemoOptions(protection="none", seed=1, rounds=options.rounds).plan().model_dump()
    plan["update"] |= {"clip": 64.0, "fraction_bits": 40}
    result = simulate(Settings.model_validate(plan | client), users=users, catalogue=data.catalogue)
    free = result.best_report.test
    print(
        f"seed 1 without rounding or clipping: HR {free.hr:.4f} NDCG {free.ndcg:.4f}; on the grid "
        f"HR {chosen[0].hr:.4f} NDCG {chosen[0].ndcg:.4f}"
    )


if __name__ == "__main__":
    main()
