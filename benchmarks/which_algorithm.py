"""Every system on every data set: the tables and the figure of which-algorithm.md.

    python benchmarks/which_algorithm.py FOLDER --data ml-100k filmtrust=INTERACTIONS
    python benchmarks/which_algorithm.py FOLDER --page docs/explanation/which-algorithm.md

The first form trains each system with each seed and keeps the results in FOLDER. Run it again to
resume it, or to add data sets, systems and seeds. The second form writes the page's tables and its
figure from FOLDER, and what systems disclose from the facts of `fedrec check`. `make bench` leaves
both out: they take hours, and data that you must bring.

If a system has several candidates, validation of the first seed chooses one for all seeds. The
papers' systems have their papers' settings, with the same floor of holders as the others: those for
this data set, or for another one if the paper doesn't have it. Bytes are those of one of three
clients in the whole run, as `fedrec check` prices them: under bfv, or unprotected if updates stay
apart. Seconds are the processor time of the whole simulation. A run that diverged or was
interrupted has a row with the seconds that all its rounds would take.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measuring import describe_machine
from numpy.typing import NDArray
from quality_figure import QualityPoint, quality_against

from fedrec import Settings, load_data, load_settings
from fedrec.algorithms import ALGORITHMS
from fedrec.cli.terminal import human_bytes
from fedrec.data import Catalogue, UserSplit
from fedrec.durable import write_whole
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import rate_of_users
from fedrec.plan.algorithm import about_algorithm
from fedrec.plan.price import price, private_price
from fedrec.plan.schema import Plan
from fedrec_lab import compare, simulate
from fedrec_lab.papers import ROWS
from fedrec_lab.reports.comparison_table import paired_bootstrap
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.checkpoint import CheckpointFolder
from fedrec_lab.simulation.result import user_ranks

Values = Mapping[str, object]
Record = dict[str, Any]

STOP = threading.Event()
AT, CLIENTS, FLOOR = 10, 3, 10
READING: dict[str, Values] = {"filmtrust": {"minimum_interactions": 5}}
OWN: dict[str, tuple[Values, ...]] = {
    "fedmf": ({},),
    "fedals": (
        *({"algorithm.dim": dim} for dim in (64, 128, 256)),
        {"algorithm.dim": 64, "algorithm.alpha": 1, "algorithm.regularisation": 10},
        {"algorithm.dim": 64, "algorithm.alpha": 10, "algorithm.regularisation": 50},
    ),
    "sketch": tuple({"algorithm.dim": dim} for dim in (64, 256, 512)),
    "ease": tuple({"algorithm.regularisation": weight} for weight in (10, 30, 100, 300, 1000)),
}
"""fedrec's own systems, and for each the settings among which validation chooses. A dimension above
the number of items with enough holders is left out, for `sketch` one above half of it, where its
sums disclose all that those of `ease` do."""
PAPERS = (
    "pfedrec", "fedncf", "fedrap", "pfedclr", "plgc", "fedrecgel",
    "gpfedrec", "perfedrec", "cofedrec", "pfedgraph",
)  # fmt: skip
REFERENCES = ("ceiling", "ease", "edlae", "item-knn", "rp3beta", "ials", "lightgcn")


def settings_of(system: str, data: str, chosen: Values, seed: int) -> Settings:
    """Return the settings of a run."""
    common = {"federation.minimum_item_users": FLOOR, "federation.maximum_users": 8192}
    common |= {"federation.seed": seed, "evaluation.protocol": "full", "client.device": "cpu"}
    common |= {"client.workers": 1, "client.threads": 1}
    if system in OWN:
        return load_settings(algorithm=system, values={**common, **chosen}, environ={})
    plan = ROWS[row_of(system, data)].plan.model_dump()
    for key, value in common.items():
        section, name = key.split(".")
        plan.setdefault(section, {})[name] = value
    return Settings.model_validate(plan)


def row_of(system: str, data: str) -> str:
    """Return the paper's row on this data set, or else its first one."""
    names = [name for name in ROWS if name.startswith(f"{system}/")]
    return next((name for name in names if name.startswith(f"{system}/{data}")), names[0])


def sections(values: Values) -> dict[str, dict[str, object]]:
    """Return values by dotted key as sections."""
    found: dict[str, dict[str, object]] = defaultdict(dict)
    for key, value in values.items():
        section, name = key.split(".")
        found[section][name] = value
    return found


def measured(
    settings: Settings, users: UserSplit, catalogue: Catalogue, folder: Path
) -> Record | None:
    """Train in a folder, or resume there. Return the run's record, or None if it was stopped."""
    resume, spent = CheckpointFolder(folder).exists, folder / "spent"
    began = time.process_time() - (float(spent.read_text().split()[0]) if resume else 0.0)

    def note(report: RoundReport) -> None:
        total = settings.plan.rounds.total
        spent.write_text(f"{time.process_time() - began} {report.round} {total}")

    result = simulate(
        settings, users=users, catalogue=catalogue, folder=folder, resume=resume, stop=STOP.is_set,
        on_round=note,
    )  # fmt: skip
    if not result.finished:
        return None
    n_items, holders = len(catalogue), result.best.shared.holders
    active = int((holders >= settings.plan.federation.minimum_item_users).sum())
    plan = settings.plan.model_dump()
    protections = about_algorithm(settings.plan).supports.protections
    plan["protection"] = {"name": "none" if protections == ("none",) else "bfv"}
    cost = price(Plan.model_validate(plan), n_items=n_items, n_clients=CLIENTS, n_active=active)
    private = private_price(settings.plan, len(users), n_items, memory_mib=2048, folders={})
    ranks = user_ranks(result)
    return {
        "validation": result.best.validation_ndcg,
        "hr": result.best_report.test.hr,
        "seconds": time.process_time() - began,
        "bytes": cost.parts["expected"].total_bytes // CLIENTS,
        "private": private.facts["table_bytes"] // len(users),
        "ranks": np.round(ranks.model, 3).tolist(),
        "popularity": np.round(ranks.popularity, 3).tolist(),
    }


def runs_of(folder: Path, system: str, seeds: int, active: int) -> Iterator[tuple[int, int]]:
    """Yield candidate and seed of each run: all candidates with one seed, then the best one."""
    for number, chosen in enumerate(OWN.get(system, ({},))):
        sums = 2 if system == "sketch" else 1
        if sums * int(str(chosen.get("algorithm.dim", 0))) <= active:
            yield number, 1
    best = chosen_in(folder)
    yield from ((best, seed) for seed in range(2, seeds + 1))


def chosen_in(folder: Path) -> int:
    """Return the candidate that the first seed's validation prefers."""
    found = {int(path.stem.split("-")[0]): read(path) for path in folder.glob("*-1.json")}
    return max(found, key=lambda number: found[number]["validation"])


def read(path: Path) -> Record:
    """Return a record."""
    found: Record = json.loads(path.read_text())
    return found


def keep(path: Path, record: Record) -> None:
    """Write a record, all of it or nothing."""
    write_whole(path, json.dumps(record).encode(), private=False)
    found = f"validation {record['validation']:.4f}, {record['seconds']:.0f} s"
    print(f"{path.parent.name} {path.stem}: {found}", flush=True)


def measure(folder: Path, data: str, source: str, systems: list[str], seeds: int) -> None:
    """Train what FOLDER lacks on one data set."""
    users, catalogue = load_data(source, **READING.get(data, {}))
    active = int((np.bincount(users.train_items) >= FLOOR).sum())
    for system in systems:
        if system == "references":
            measure_references(folder / data, data, users, catalogue)
            continue
        home = folder / data / system
        home.mkdir(parents=True, exist_ok=True)
        for number, seed in runs_of(home, system, seeds, active):
            path = home / f"{number}-{seed}.json"
            if path.exists():
                continue
            settings = settings_of(system, data, OWN.get(system, ({},))[number], seed)
            work = home / f"running-{number}-{seed}"
            try:
                record = measured(settings, users, catalogue, work)
            except TrainingError as error:
                print(f"{data}, {system}: {error}", flush=True)
                (work / "diverged").touch()
                break
            if record is None:
                raise SystemExit(f"Stopped. To resume {data}, {system}: the same command.")
            record["settings"] = settings.plan.model_dump(mode="json")
            keep(path, record | {"machine": describe_machine()})
            shutil.rmtree(work)


def measure_references(home: Path, data: str, users: UserSplit, catalogue: Catalogue) -> None:
    """Tune and measure the references that are missing. The others are read again."""
    compared = compare(
        settings_of("fedals", data, OWN["fedals"][0], 1), users=users, catalogue=catalogue,
        references=REFERENCES, folder=home / "references", stop=STOP.is_set, progress=True,
    )  # fmt: skip
    if not compared.finished:
        raise SystemExit(f"Stopped. To resume the references of {data}: the same command.")


def label_of(system: str, data: str, number: int) -> str:
    """Return a system's name, with its settings or the data set that they are for."""
    if system not in OWN:
        known = row_of(system, data).split("/")[1]
        return system if known == data else f"{system}, as on {known}"
    chosen = OWN[system][number].items()
    return ", ".join([system, *(f"{key.split('.')[1]} = {one}" for key, one in chosen)])


def row(label: str, *cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join([label, *cells])} |"


def interval(ranks: NDArray[np.float64], reference: NDArray[np.float64], form: str) -> str:
    """Return the 95 % interval of NDCG minus that of a reference, over users."""
    found = paired_bootstrap(ranks, reference, at=AT).difference
    return f"[{found.low:{form}}, {found.high:{form}}]"


def ndcg_of(ranks: NDArray[np.float64]) -> float:
    """Return NDCG over users with a held-out item, as a mean over seeds."""
    return float(np.mean([rate_of_users(one[one >= 0], AT).mean() for one in np.atleast_2d(ranks)]))


def tabled(home: Path) -> tuple[list[str], list[QualityPoint], dict[str, float]]:
    """Return a data set's table, its points of the figure, and its lines."""
    rows, points, lines = [], [], {}
    for system in (*OWN, *PAPERS):
        if not any((home / system).glob("*-1.json")):
            rows.append(unfinished(home, system))
            continue
        best = chosen_in(home / system)
        for number, chosen in enumerate(OWN.get(system, ({},))):
            if number != best and "algorithm.dim" not in chosen:
                continue
            found = [read(path) for path in sorted((home / system).glob(f"{number}-*.json"))]
            if not found:
                continue
            one, ranks = found[0], np.array([record["ranks"] for record in found])
            popular = np.array(one["popularity"])
            missed = np.where(popular < 0, popular, float(AT))
            lines["popularity"] = ndcg_of(popular)
            ndcg = ndcg_of(ranks)
            label = label_of(system, home.name, number)
            rows.append(
                row(
                    f"**{label}**" if number == best and len(OWN.get(system, "")) > 1 else label,
                    str(len(found)),
                    f"{np.mean([record['hr'] for record in found]):.4f}",
                    f"{ndcg:.4f} {interval(ranks, missed, '.4f')}",
                    interval(ranks, popular, "+.4f"),
                    f"{one['bytes'] / 1e6:.1f} MB",
                    f"{np.median([record['seconds'] for record in found]):.0f}",
                    human_bytes(one["private"]) if one["private"] else "none",
                )
            )
            points.append(
                QualityPoint(label=system, data=home.name, cost=one["bytes"] / 1e6, ndcg=ndcg)
            )
    rows.append(row("popularity", "", "", f"{lines['popularity']:.4f}", "", "", "", ""))
    known = references_of(home)
    for name in (each + rows for each in REFERENCES for rows in ("", "-all-rows")):
        if name in known:
            ndcg = known[name]["rates"]["ndcg"]
            rows.append(row(known[name]["label"], "", "", f"{ndcg:.4f}", "", "", "", ""))
            if name in REFERENCES[1:]:
                lines["best reference"] = max(lines.get("best reference", 0.0), ndcg)
    return rows, points, lines


def unfinished(home: Path, system: str) -> str:
    """Return the row of a system whose run was interrupted or never began."""
    label, work = label_of(system, home.name, 0), home / system / "running-0-1"
    if not (work / "spent").exists():
        return row(label, "0", "", "not measured", "", "", "", "")
    seconds, done, total = map(float, (work / "spent").read_text().split())
    ended = "diverged" if (work / "diverged").exists() else "stopped"
    found = f"{ended} after {done:.0f} of {total:.0f} rounds"
    return row(label, "0", "", found, "", "", f"all rounds: {seconds / done * total:.0f}", "")


HEADERS = (
    "", "seeds", "HR@10", "NDCG@10", "minus popularity", "bytes a client", "CPU seconds",
    "private state per user",
)  # fmt: skip
SUMS = {
    "rows": "sums over users for each item's row",
    "pairs": "the exact number of users that hold each pair of items",
    "sketches": "sums over each item's pair counts",
}
"""The subject of a system's sums, by `About.audit`."""


def disclosures() -> list[str]:
    """Return a table of what each system discloses. Systems of the same facts share a row."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for system in (*OWN, *PAPERS):
        about = ALGORITHMS[system].about
        read = about.exposes.in_the_clear
        apart = about.supports.protections == ("none",)
        cells = (
            "none: updates stay apart" if apart else SUMS[about.audit],
            "nothing" if apart else about.exposes.to_members or "the sum of a rare item's row",
            f"{read}. It takes `--accept-exposure`" if read else "the client's sums",
            "no" if about.not_under_noise else "yes",
        )
        found[cells].append(f"`{system}`")
    headers = (
        "", "published sums", "what a member that raises counts could read",
        "what the coordinator reads of a client without a protection", "supports noise",
    )  # fmt: skip
    rows = [row(", ".join(systems), *cells) for cells, systems in found.items()]
    return [row(*headers), row(*["---"] * len(headers)), *rows]


def references_of(home: Path) -> dict[str, dict[str, Any]]:
    """Return the first seed's records of references, and of `fedals` at its defaults, by method."""
    found = {}
    for path in sorted((home / "references" / "parts").glob("*-full-seed-1.json")):
        found |= {each["method"]: each for each in read(path)["measurements"]}
    return found


def against_references(homes: list[Path]) -> list[str]:
    """Return a table of references, and of the differences of `fedals` from them."""
    known = {home.name: references_of(home) for home in homes}
    kinds = {"rows that may travel": "", "all rows": "-all-rows"}
    rows = [row("", *(f"{data}, {kind}" for data in known for kind in kinds))]
    rows += [row(*["---"] * (1 + 2 * len(known)))]
    for name in ("ceiling", "popularity", "fedals", *REFERENCES[1:]):
        cells, label = [], name
        for found in known.values():
            own = np.array(found["fedals"]["ranks"], dtype=np.float64)
            for each in (found.get(name + kind) for kind in kinds.values()):
                cell = "" if each is None else f"{each['rates']['ndcg']:.4f}"
                if each and name in REFERENCES[1:]:
                    label = each["label"].removesuffix(", all rows")
                    other = np.array(each["ranks"], dtype=np.float64)
                    apart = paired_bootstrap(own, other, at=AT, n_resamples=2_000).difference
                    mark = "" if apart.excludes(0.0) else "= "
                    cell += f" {mark}[{apart.low:+.4f}, {apart.high:+.4f}]"
                cells.append(cell)
        rows.append(row(label, *cells))
    return rows


def shares(homes: list[Path]) -> list[str]:
    """Return a table of each system's share of the best reference, chosen in two ways."""
    systems = ("ease", "sketch", "fedals")
    rows = [row("", "", *systems), row("---", *["---"] * (1 + len(systems)))]
    for home in homes:
        known = references_of(home)
        references = {known[name]["label"]: known[name] for name in REFERENCES[1:] if name in known}
        for by in ("validation", "rates") if references else ():
            best = max(references, key=lambda label: references[label][by]["ndcg"])
            cells = []
            for system in systems:
                paths = sorted((home / system).glob(f"{chosen_in(home / system)}-*.json"))
                ranks = np.array([read(path)["ranks"] for path in paths])
                against = np.array(references[best]["ranks"], dtype=np.float64)
                found = paired_bootstrap(ranks, against, at=AT, n_resamples=2_000).ratio
                cells.append(f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]")
            way = "test" if by == "rates" else by
            rows.append(row(home.name, f"{best}, best on {way}", *cells))
    return rows


MARK, END = "<!-- which_algorithm.py{} -->", "<!-- end -->"


def replaced(text: str, part: str, lines: list[str]) -> str:
    """Return the page with other lines in one of its marked parts."""
    begin = MARK.format(part)
    before, rest = text.split(begin)
    return "\n".join([f"{before}{begin}\n", *lines, "", END]) + rest.partition(END)[2]


def write_page(folder: Path, page: Path) -> None:
    """Replace the page's tables, and the figure in its folder."""
    text, points, lines = [], [], defaultdict(dict)
    for home in sorted(path for path in folder.iterdir() if path.is_dir()):
        rows, its_points, its_lines = tabled(home)
        heading = row("---", *("---" for _ in HEADERS[1:]))
        text += [f"### {home.name}\n", row(*HEADERS), heading, *rows, ""]
        points += its_points
        for label, ndcg in its_lines.items():
            lines[label][home.name] = ndcg
    written = replaced(page.read_text(), "", text[:-1])
    homes = sorted(path for path in folder.iterdir() if path.is_dir())
    written = replaced(written, ": references", against_references(homes))
    written = replaced(written, ": shares", shares(homes))
    page.write_text(replaced(written, ": disclosure", disclosures()))
    cost = "MB a client sends and receives in the whole run"
    figure = page.parent / "quality-and-bytes.svg"
    figure.write_text(quality_against(cost, points, lines) + "\n")


def main() -> None:
    """Measure what FOLDER lacks, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="results of all runs")
    parser.add_argument(
        "--data", nargs="+", default=[], metavar="NAME[=FILE]",
        help="data sets: ml-100k, ml-1m, filmtrust, amazon-video, in the cache or in a file",
    )  # fmt: skip
    systems = [*OWN, *PAPERS, "references"]
    parser.add_argument("--systems", nargs="+", default=systems, choices=systems)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="the page whose tables are replaced")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, lambda *_: STOP.set())
    for each in chosen.data:
        name, _, path = each.partition("=")
        measure(chosen.folder, name, path or name, chosen.systems, chosen.seeds)
    if chosen.page is not None:
        write_page(chosen.folder, chosen.page)


if __name__ == "__main__":
    main()
