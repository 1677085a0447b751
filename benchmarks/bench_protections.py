"""The demo's federation under every protection: bytes, seconds and quality, and equal models.

FedMF with CoLR on MovieLens-100K: a coordinator and three client processes over gRPC with TLS on
this machine, for each protection the same plan but for its name. Bytes are those of a client's
network interface, medians over clients and rounds. Seconds of a round run from its opening to its
publication, training included; the median of the training rounds. Exact protections must publish
the same model: their clients' models are compared bit by bit, and a difference ends the benchmark.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import tempfile
from pathlib import Path

from measuring import describe_machine
from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.federation import prepare

from fedrec.plan.layout import protection_of
from fedrec.protection import PROTECTIONS
from fedrec.training.learner import Learner
from fedrec_client.state.private_store import PrivateStore
from fedrec_lab.demo.demonstration import DemoOptions
from fedrec_lab.demo.further_runs import measured_costs, run_federation
from fedrec_lab.demo.workspace import DemoData, load_data
from fedrec_lab.reports.run_folder import RunFolder

COLUMNS = (
    f"{'protection':<22} {'message':>10} {'B/value':>8} {'up':>10} {'down':>10} "
    f"{'s/round':>14} {'HR@10':>7} {'NDCG@10':>8}  model"
)


def main() -> None:
    """Run every protection after another and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "protections",
        nargs="*",
        default=list(PROTECTIONS),
        help="names, with a parameter set behind a slash where it is not the default",
    )
    options = parser.parse_args()
    print(describe_machine())
    data = load_data(synthetic=False)
    print(f"{data.name}, 3 clients, {options.rounds} training rounds\n{COLUMNS}")
    models: dict[str, str] = {}
    for chosen in options.protections:
        models |= run(chosen, data, options.rounds)
    if len(set(models.values())) > 1:
        raise SystemExit(f"exact protections published different models: {models}")


def run(chosen: str, data: DemoData, rounds: int) -> dict[str, str]:
    """Run one federation, print its line, and return its model's digest if it is exact."""
    name, _, preset = chosen.partition("/")
    plan = DemoOptions(protection=name, preset=preset or "default", rounds=rounds).plan()
    protection = protection_of(plan, len(data.catalogue)).chosen
    Learner(plan, len(data.catalogue)).warm_up()
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch), "bench")
        workspace = prepare(folder.path, plan, data, n_clients=3)
        view = run_federation(workspace, folder, Console(quiet=True))
        costs = measured_costs(workspace)
        digests = {model_digest(state) for state in workspace.client_states}
    if len(digests) != 1:
        raise SystemExit(f"the clients of {chosen} have different models")
    digest = digests.pop()
    seconds = [report.seconds for report in view.rounds if report.kind == "train"]
    best = view.best
    test = None if best is None else best.test
    quality = f"{'-':>7} {'-':>8}" if test is None else f"{test.hr:>7.4f} {test.ndcg:>8.4f}"
    per_value = protection.message_bytes / protection.n_values
    spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
    print(
        f"{protection.protection + '/' + protection.preset:<22} {protection.message_bytes:>10,} "
        f"{per_value:>8.2f} {costs.up:>10,} {costs.down:>10,} "
        f"{spread:>14} {quality}  {digest[:12]}",
        flush=True,
    )
    return {chosen: digest}


def model_digest(state: Path) -> str:
    """Return the digest of the shared model that a client ended with."""
    store = PrivateStore(state, read_only=True)
    shared = store.state.shared
    if shared is None:
        raise SystemExit(f"{state.name} has no model")
    return hashlib.sha256(store.read(shared)).hexdigest()


if __name__ == "__main__":
    main()
