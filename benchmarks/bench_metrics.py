"""What one event costs each party's metrics, and what reading all of them does.

    python benchmarks/bench_metrics.py

An event is to take less than 10 microseconds: a coordinator hears of a few for each update. All
times are the processor's, so that other work on the machine changes them little.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from measuring import describe_machine, summary
from prometheus_client.exposition import generate_latest

from fedrec.errors import TooLarge
from fedrec.follower.events import ClientEvent
from fedrec.ids import ClientId, RoundId
from fedrec.protection.round_protocol import ONE_STEP
from fedrec.settings.schema import CoordinatorSettings
from fedrec_authority.delivery import AuthorityEvent
from fedrec_authority.metrics import AuthorityMetrics
from fedrec_client.metrics import ClientMetrics
from fedrec_server.metrics import CoordinatorMetrics
from fedrec_server.rounds.changes import UpdateCounted
from fedrec_server.run.figures import LatestQuality

EVENTS = 20_000
REPEATS = 9
MOST_MICROSECONDS = 10.0
N_CLIENTS = 1_000


def engine() -> Any:
    """Return what the coordinator's metrics look at: a round that waits for half of its clients."""
    clients = frozenset(ClientId(f"{number:064d}") for number in range(N_CLIENTS))
    accepted = dict.fromkeys(sorted(clients)[: N_CLIENTS // 2])
    round_ = SimpleNamespace(
        number=RoundId(7), phase="collecting", asked=clients, accepted=accepted
    )
    rules = SimpleNamespace(
        epoch=1, revealer=None, steps=ONE_STEP, mechanism=None, rounds=SimpleNamespace(published=60)
    )
    state = SimpleNamespace(
        current=round_, roster=clients, rules=rules, ending=None,
        abandonments=SimpleNamespace(in_row=0), rounds_published=6, charged=0, releases=0,
        epsilon=None,
    )  # fmt: skip
    run = SimpleNamespace(
        state=state,
        clock=SimpleNamespace(now=time.time),
        listeners=[],
        presence=SimpleNamespace(live=lambda: clients, last_heard=lambda who: 0.0),
    )
    return SimpleNamespace(run=run, quality=LatestQuality())


def microseconds(what: Callable[[], object], times: int) -> list[float]:
    """Return what a call takes of the processor, in each of several series."""
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(times):
            what()
        found.append((time.process_time() - began) / times * 1e6)
    return found


def main() -> int:
    """Print the table; 1 where an event takes too long."""
    print(describe_machine())
    with TemporaryDirectory() as folder:
        looked_at = engine()
        before = looked_at.run.state
        local = CoordinatorSettings(state=folder)
        coordinator = CoordinatorMetrics(looked_at, local, certificate_ends=0.0)
        client, authority = ClientMetrics(Path(folder)), AuthorityMetrics(Path(folder))
        counted = (UpdateCounted(header=SimpleNamespace(length=1 << 20), at=0.0),)  # type: ignore[arg-type]
        refused = TooLarge("too large")
        trained = ClientEvent(name="trained", round=RoundId(7), seconds=0.5, bytes_up=1 << 20)
        opened = AuthorityEvent(name="sum revealed", round=7, seconds=0.2)
        events: dict[str, Callable[[], object]] = {
            "coordinator, update counted": lambda: coordinator.on_commit(before, counted),
            "coordinator, call refused": lambda: coordinator.refused("/x/SubmitUpdate", refused),
            "client, trained": lambda: client.take(trained),
            "authority, sum opened": lambda: authority.take(opened),
        }
        slow = []
        for name, event in events.items():
            found = microseconds(event, EVENTS)
            print(f"{name}: {summary(found, 'us an event')}")
            if statistics.median(found) >= MOST_MICROSECONDS:
                slow.append(name)
        look = microseconds(coordinator._look, 200)
        print(f"coordinator, look once a second at {N_CLIENTS} clients: {summary(look, 'us')}")
        for name, party in (("coordinator", coordinator), ("client", client)):
            read = microseconds(lambda party=party: generate_latest(party.registry), 50)  # type: ignore[misc]
            print(f"{name}, /metrics read: {summary(read, 'us')}")
    if slow:
        print(f"above {MOST_MICROSECONDS:.0f} us: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
