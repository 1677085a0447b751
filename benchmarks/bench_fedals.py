"""fedals: seconds of a round in one process, and of a whole encrypted federation over gRPC.

Without --data it takes MovieLens-100K; a file with the columns user and item (and perhaps
timestamp), such as MovieLens-1M as CSV, measures a larger one. The federation is a coordinator and
three client processes on this machine, under bfv, over TLS; its seconds run from the start of the
first process to the published evaluation of the last round. Quality is of the test items, at the
version that is best on validation.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

from measuring import add_device, describe_device, describe_machine, summary

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.federation import prepare

from fedrec.data import Catalogue, leave_one_out, read_interactions
from fedrec.identity.certificates import Credentials
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner
from fedrec.wire.admin_link import AdminLink
from fedrec_lab.demo.parties import Processes
from fedrec_lab.demo.workspace import DemoData, load_data
from fedrec_lab.reports.federation_record import RunView

N_CLIENTS = 3


def plan_of(rounds: int, n_users: int, *, every_rounds: int = 1) -> Plan:
    """Return fedals with its defaults, under bfv."""
    return Plan.model_validate(
        {
            "federation": {"name": "bench", "maximum_users": 1 << n_users.bit_length()},
            "algorithm": {"name": "fedals"},
            "update": {"structure": "dense", "clip": 2.0},
            # No key authority runs beside this federation: the papers' protocol.
            "protection": {"name": "bfv", "key_holder": "members"},
            "evaluation": {"every_rounds": every_rounds},
            "rounds": {"total": rounds, "minimum_clients": N_CLIENTS},
        }
    )


def read(path: str) -> DemoData:
    """Return the data of a file, or MovieLens-100K."""
    if not path:
        return load_data(synthetic=False)
    interactions, _ = read_interactions(path)
    interactions = interactions.deduplicated()
    catalogue = Catalogue.from_interactions(interactions)
    return DemoData(name=Path(path).name, interactions=interactions, catalogue=catalogue, note="")


def print_rounds(data: DemoData, runs: int, device: str) -> None:
    """Time training rounds of all users in this process, without measuring quality."""
    users = leave_one_out(data.interactions, data.catalogue)
    plan = plan_of(10, len(users), every_rounds=1_000_000)
    learner = Learner(plan, len(data.catalogue), device=device)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    counts = learner.contribute("count", 1, shared, users, private)
    shared = learner.server.apply("count", 1, shared, counts.vector)
    fitting, applying = [], []
    for number in range(2, runs + 4):
        begin = time.perf_counter()
        part = learner.contribute("train", number, shared, users, private)
        between = time.perf_counter()
        shared = learner.server.apply("train", number, shared, part.vector)
        # The first two meet cold caches.
        if number >= 4:
            fitting.append(between - begin)
            applying.append(time.perf_counter() - between)
    print(f"  {len(users)} users, {len(data.catalogue)} items, {users.n_train:,} interactions")
    print(f"  users' part of a round: {summary(fitting)}")
    print(f"  items' part of a round: {summary(applying)}")
    print(f"  together: {summary([a + b for a, b in zip(fitting, applying, strict=True)])}")


def print_federation(data: DemoData, rounds: int, device: str) -> None:
    """Run the federation over gRPC and print its seconds and quality."""
    plan = plan_of(rounds, data.interactions.n_users)
    with tempfile.TemporaryDirectory() as scratch:
        workspace = prepare(Path(scratch), plan, data, n_clients=N_CLIENTS)
        begin = time.perf_counter()
        with Processes(Path(scratch) / "logs") as processes:
            processes.start(
                "coordinator",
                "coordinator",
                "run",
                str(workspace.parties.coordinator),
                talks=True,
            )
            address = processes.first_line("coordinator")["address"]
            for number, settings in enumerate(workspace.parties.clients, start=1):
                where = (f"client.coordinator={address}", f"client.device={device}")
                values = [word for value in where for word in ("--set", value)]
                processes.start(f"client-{number}", "client", "run", str(settings), *values)
            link = AdminLink(address, Credentials.load(workspace.operator, "the benchmark"))
            view = RunView(planned=rounds + 2, at=plan.evaluation.at)
            upload, opened = 0, []
            for event in link.events():
                report = view.take(event)
                if report is not None:
                    print(f"    {view.line(report)}", flush=True)
                if event.kind == "update counted":
                    upload = event.fields["bytes"]
                if event.kind == "round opened":
                    opened.append(event.unix_seconds)
                if event.kind == "run finished":
                    break
            link.close()
        seconds = time.perf_counter() - begin
        best, references = view.best, view.references
        assert best is not None and best.test is not None and references is not None
        popularity = references.rates("popularity", "test")
    between = [later - earlier for earlier, later in itertools.pairwise(opened[1:])]
    print(f"  {rounds} rounds over gRPC under bfv, {N_CLIENTS} clients: {seconds:.1f} s in all")
    print(f"  a round, measuring included: {summary(between)}; each uploads {upload:,} bytes")
    print(f"  test HR@10 {best.test.hr:.4f} NDCG@10 {best.test.ndcg:.4f} (round {best.round})")
    if popularity is not None:
        print(f"  popularity HR@10 {popularity.hr:.4f} NDCG@10 {popularity.ndcg:.4f}")


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="interactions; MovieLens-100K by default")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=7)
    add_device(parser)
    options = parser.parse_args()
    print(describe_machine())
    print(describe_device(options.device))
    data = read(options.data)
    print(data.name)
    print_rounds(data, options.runs, options.device)
    print_federation(data, options.rounds, options.device)


if __name__ == "__main__":
    main()
