"""Quality, bytes and state of algorithms on one data set: the table of which-algorithm.md.

    python benchmarks/which_algorithm.py NAME INTERACTIONS --into figures
    python benchmarks/which_algorithm.py NAME INTERACTIONS --rows ROW ... --into figures
    python benchmarks/which_algorithm.py --figure quality-and-bytes.svg --into figures

The first form trains with `fedrec evaluate` (full protocol, test of the version that validation
chose), prices the same settings with `fedrec check` under bfv, three clients, prints the rows and
writes FIGURES/NAME.json. The second does so for rows of `fedrec reproduce`, whose settings
are their papers', and writes nothing. The third draws what the first wrote. `make bench` leaves
them out: they take minutes, and data that is not here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from quality_figure import QualityPoint, quality_against

from fedrec_lab.papers import ROWS

BASE: dict[str, dict[str, Any]] = {
    "federation": {"name": "which", "maximum_users": 8192, "minimum_item_users": 10},
    "rounds": {"minimum_clients": 3},
}
FEDMF = {
    "algorithm": {
        "name": "fedmf",
        "dim": 16,
        "learning_rate": 2.0,
        "regularisation": 0.005,
        "local_epochs": 1,
    },
    "update": {"structure": "colr", "rank": 4, "clip": 2.0},
    "rounds": {"total": 60},
}
LAMBDA = {"ml-100k": 100.0, "ml-1m": 1000.0, "filmtrust": 100.0}
"""What validation chooses for EASE on the rows that may travel: `fedrec evaluate`."""
DIMS = {"ml-100k": (64, 256), "ml-1m": (64, 256), "filmtrust": (64, 128)}


def cases(name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return sections of settings by label."""
    dense = {"structure": "dense"}
    found = {
        "fedmf (colr)": FEDMF,
        "fedals": {
            "algorithm": {"name": "fedals", "dim": 64},
            "update": {**dense, "clip": 2.0},
            "rounds": {"total": 10},
        },
    }
    for dim in DIMS[name]:
        found[f"sketch, k = {dim}"] = {
            "algorithm": {"name": "sketch", "dim": dim},
            "update": dense,
            "rounds": {"total": 3},
        }
    found["ease"] = {
        "algorithm": {"name": "ease", "regularisation": LAMBDA[name]},
        "update": dense,
        "rounds": {"total": 4},
    }
    return found


def fedrec(*arguments: str) -> Any:
    """Return what a command prints with --json."""
    command = [sys.executable, "-m", "fedrec", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def measure(name: str, interactions: Path, seeds: str) -> list[dict[str, Any]]:
    """Return a row for popularity and for each case."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for label, sections in cases(name).items():
            path, price = priced(sections, interactions, Path(folder))
            quality = fedrec(
                "evaluate", str(path), "--set", "protection.name=bfv", "--protocols", "full",
                "--seeds", seeds, "--no-references", "--clients", "1",
                "--out", str(Path(folder) / f"out-{len(rows)}"),
            )  # fmt: skip
            by_method = {row["method"]: row["results"]["full"] for row in quality["rows"]}
            if not rows:
                counted = price["count_upload_bytes"] + price["count_download_bytes"]
                rows.append(row_of("popularity", by_method["popularity"], counted))
            total = price["expected"]["total_bytes"] // price["n_clients"]
            rows.append(row_of(label, by_method[sections["algorithm"]["name"]], total))
            print(line_of(rows[-1]), flush=True)
    return rows


def priced(
    sections: dict[str, dict[str, Any]], interactions: Path, folder: Path
) -> tuple[Path, Any]:
    """Return a file of settings and what `fedrec check` says of them under bfv."""
    settings: dict[str, Any] = {"data": {"path": str(interactions)}}
    for section in (BASE, sections):
        for key, values in section.items():
            settings[key] = {**settings.get(key, {}), **values}
    path = folder / "run.toml"
    path.write_text(
        "\n".join(
            f"[{section}]\n" + "\n".join(f"{key} = {toml(value)}" for key, value in values.items())
            for section, values in settings.items()
        )
    )
    return path, fedrec("check", str(path), "--set", "protection.name=bfv")["price"]


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        given = (f"{key} = {toml(one)}" for key, one in value.items() if one is not None)
        return f"{{{', '.join(given)}}}"
    return json.dumps(value)


def of_papers(names: list[str], interactions: Path) -> list[dict[str, Any]]:
    """Return rows of the reproduction: the protocol `full`, one seed, priced like the others."""
    rows = []
    for name in names:
        sections = {
            section: {key: value for key, value in values.items() if value is not None}
            for section, values in ROWS[name].plan.model_dump(mode="json").items()
            if section in ("algorithm", "update", "rounds")
        }
        with tempfile.TemporaryDirectory() as folder:
            _, price = priced(sections, interactions, Path(folder))
            (done,) = fedrec("reproduce", name, "--protocols", "full", "--out", folder)["rows"]
        (run,) = done["runs"]
        result = {
            metric: {"mean": run["test"][metric], "deviation": None} for metric in ("hr", "ndcg")
        }
        rows.append(row_of(name, result, price["expected"]["total_bytes"] // price["n_clients"]))
        print(line_of(rows[-1]), flush=True)
    return rows


def row_of(label: str, result: dict[str, Any], n_bytes: int) -> dict[str, Any]:
    """Return a row's figures."""
    return {
        "label": label,
        "hr": result["hr"]["mean"],
        "ndcg": result["ndcg"]["mean"],
        "deviation": result["ndcg"]["deviation"],
        "bytes": n_bytes,
    }


def line_of(row: dict[str, Any]) -> str:
    """Return a row of the page's table."""
    spread = "" if row["deviation"] is None else f" ± {row['deviation']:.4f}"
    quality = f"{row['hr']:.4f} | {row['ndcg']:.4f}{spread}"
    return f"| {row['label']} | {quality} | {row['bytes'] / 1e6:.1f} MB |"


def main() -> None:
    """Measure a data set, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(DIMS))
    parser.add_argument("interactions", nargs="?", type=Path)
    parser.add_argument("--into", type=Path, default=Path("figures"))
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--rows", nargs="+", choices=sorted(ROWS), metavar="ROW")
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    if chosen.figure is not None:
        points, floors = [], {}
        for path in sorted(chosen.into.glob("*.json")):
            for row in json.loads(path.read_text()):
                if row["label"] == "popularity":
                    floors[path.stem] = row["ndcg"]
                    continue
                points.append(
                    QualityPoint(
                        label=row["label"],
                        data=path.stem,
                        cost=row["bytes"] / 1e6,
                        ndcg=row["ndcg"],
                    )
                )
        cost = "MB a client sends and receives in the whole run"
        chosen.figure.write_text(quality_against(cost, points, floors) + "\n")
        return
    if chosen.name is None or chosen.interactions is None:
        parser.error("name a data set and its interactions.csv")
    if chosen.rows is not None:
        of_papers(chosen.rows, chosen.interactions.resolve())
        return
    rows = measure(chosen.name, chosen.interactions.resolve(), chosen.seeds)
    print(*map(line_of, rows), sep="\n")
    chosen.into.mkdir(parents=True, exist_ok=True)
    (chosen.into / f"{chosen.name}.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
