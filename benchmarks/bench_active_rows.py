"""What items that are never trained cost: a large catalogue beside its trainable items alone.

    python benchmarks/bench_active_rows.py [--users 2000] [--clients 4] [--rounds 3] [--repeat 3]
    python benchmarks/bench_active_rows.py --grpc

Two federations with the same users in one run: one over a catalogue of 105,000 items of which 4,400
are trained, because the others have too few holders, and one over those 4,400 alone. Rounds are
really protected, added up and opened (bfv); a count round, training rounds and the last one, which
measures, are all in the figures. With `--grpc` coordinator and clients are processes that speak TLS
on this machine; seconds run from a round's opening to its publication, and bytes are all that
clients sent and received. Wanted: at most 1.3 times the seconds and the bytes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measuring import describe_machine
from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.federation import prepare

from fedrec.clock import SystemClock
from fedrec.data import Catalogue, Interactions, UserSplit
from fedrec.ids import UserId
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec_lab.demo.further_runs import journal_lines, run_federation
from fedrec_lab.demo.workspace import DemoData
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation.federation import SimulatedFederation
from fedrec_lab.simulation.parties import Arrangement

N_ITEMS, N_TRAINED, LEAST = 105_000, 4_400, 10
PER_USER = 40


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run took.

    Attributes:
        counting: seconds of the count round.
        seconds: of all rounds.
        n_bytes: what all clients uploaded.
    """

    counting: float
    seconds: float
    n_bytes: int


def split_of(n_users: int, held: np.ndarray[tuple[int], np.dtype[np.int64]]) -> UserSplit:
    """Return users who hold some of these items, every one of them often enough to be trained."""
    random = np.random.default_rng(1)
    dealt = np.concatenate(
        [random.permutation(held) for _ in range(-(-n_users * PER_USER // len(held)))]
    )
    train = np.sort(dealt[: n_users * PER_USER].reshape(n_users, PER_USER), axis=1)
    drawn = random.choice(held, (2, n_users))
    return UserSplit(
        user_ids=tuple(UserId(f"user-{number}") for number in range(n_users)),
        train_indptr=np.arange(n_users + 1, dtype=np.int64) * PER_USER,
        train_items=train.reshape(-1).astype(np.int64),
        validation_items=drawn[0].astype(np.int64),
        test_items=drawn[1].astype(np.int64),
    )


def with_rare(users: UserSplit, place: np.ndarray[tuple[int], np.dtype[np.int64]]) -> UserSplit:
    """Return the same users in the large catalogue, where each also holds an item of its own."""
    rare = np.setdiff1d(np.arange(N_ITEMS), place)[: len(users)]
    rows = place[users.train_items].reshape(len(users), -1)
    train = np.sort(np.concatenate([rows, rare[:, None]], axis=1), axis=1)
    return UserSplit(
        user_ids=users.user_ids,
        train_indptr=np.arange(len(users) + 1, dtype=np.int64) * train.shape[1],
        train_items=train.reshape(-1).astype(np.int64),
        validation_items=place[users.validation_items],
        test_items=place[users.test_items],
    )


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return what both federations agree on."""
    return Plan.model_validate(
        {
            "federation": {"maximum_users": 16_384, "minimum_item_users": LEAST},
            "algorithm": {"name": "fedals", "dim": arguments.dim},
            "update": {"structure": "dense"},
            # No key authority runs beside this federation: the papers' protocol.
            "protection": {"name": "bfv", "key_holder": "members"},
            "rounds": {"total": arguments.rounds},
        }
    )


def run(users: UserSplit, n_items: int, arguments: argparse.Namespace) -> Cost:
    """Play all rounds of a federation in this process."""
    plan = plan_of(arguments)
    federation = SimulatedFederation(
        Settings.model_validate({**plan.model_dump(), "client": {"device": "cpu"}}),
        catalogue_of(n_items),
        users,
        Arrangement(n_clients=arguments.clients, protect=True),
        clock=SystemClock(),
    )
    seconds, n_bytes = [], 0
    while not federation.finished:
        began = time.perf_counter()
        report = federation.advance()
        seconds.append(time.perf_counter() - began)
        n_bytes += report.vector_bytes * report.n_clients
    return Cost(counting=seconds[0], seconds=sum(seconds), n_bytes=n_bytes)


def run_processes(users: UserSplit, n_items: int, arguments: argparse.Namespace) -> Cost:
    """Play all rounds of a federation of processes over gRPC with TLS."""
    catalogue = catalogue_of(n_items)
    data = DemoData(
        name="", note="", catalogue=catalogue, interactions=interactions_of(users, catalogue)
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch), "bench")
        workspace = prepare(folder.path, plan_of(arguments), data, n_clients=arguments.clients)
        view = run_federation(workspace, folder, Console(quiet=True))
        n_bytes = sum(line["bytes_up"] + line["bytes_down"] for line in journal_lines(workspace))
    seconds = [report.seconds for report in view.rounds]
    return Cost(counting=seconds[0], seconds=sum(seconds), n_bytes=n_bytes)


def catalogue_of(n_items: int) -> Catalogue:
    """Return the items, in the order of their rows."""
    return Catalogue.of([f"item-{row:06}" for row in range(n_items)])


def interactions_of(users: UserSplit, catalogue: Catalogue) -> Interactions:
    """Return what users did, one thing after another, what is held out at the end."""
    names, items, times = [], [], []
    for number, user in enumerate(users.user_ids):
        begin, end = users.train_indptr[number : number + 2]
        history = [*users.train_items[begin:end].tolist()]
        last = [users.validation_items[number], users.test_items[number]]
        names += [user] * (len(history) + 2)
        items += [catalogue.item_ids[row] for row in [*history, *last]]
        times += range(len(history) + 2)
    return Interactions.from_arrays(names, items, times).deduplicated()


def main() -> None:
    """Measure both federations by turns and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--grpc", action="store_true", help="processes on this machine")
    arguments = parser.parse_args()
    alone = split_of(arguments.users, np.arange(N_TRAINED))
    place = np.sort(np.random.default_rng(2).choice(N_ITEMS, N_TRAINED, replace=False))
    large = with_rare(alone, place)
    play = run_processes if arguments.grpc else run
    if not arguments.grpc:
        # The first run of a process loads libraries; both sides are measured after it.
        small = argparse.Namespace(clients=3, rounds=1, dim=8)
        run(alone.select(np.arange(1500)), N_TRAINED, small)
    own, all_items = [], []
    for _ in range(arguments.repeat):
        own.append(play(alone, N_TRAINED, arguments))
        all_items.append(play(large, N_ITEMS, arguments))
    print(describe_machine())
    print(
        f"{arguments.clients} clients, {arguments.users} users, {arguments.rounds} training "
        f"rounds, {'processes over gRPC' if arguments.grpc else 'one process'}; "
        f"medians of {arguments.repeat} runs"
    )
    print(f"{'':32}{'count round':>14}{'all rounds':>14}{'bytes':>14}")
    for name, costs in (
        (f"{N_TRAINED:,} items", own),
        (f"{N_ITEMS:,} items, {N_TRAINED:,} trained", all_items),
    ):
        counting = statistics.median(cost.counting for cost in costs)
        seconds = statistics.median(cost.seconds for cost in costs)
        mebibytes = costs[0].n_bytes / 2**20
        print(f"{name:32}{counting:>12.2f} s{seconds:>12.2f} s{mebibytes:>10.1f} MiB")
    ratios = sorted(two.seconds / one.seconds for one, two in zip(own, all_items, strict=True))
    n_bytes = all_items[0].n_bytes / own[0].n_bytes
    print(f"{'ratio':32}{'':14}{statistics.median(ratios):>12.2f} x{n_bytes:>10.2f} x")
    print(f"{'':46}({ratios[0]:.2f}-{ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
