"""The size of each party's machine, from the price of a run."""

from __future__ import annotations

from typing import TypedDict

from fedrec.algorithms.individual import rule_bytes
from fedrec.model.tables import room_on_disk, table_bytes
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import own_model_bytes
from fedrec.plan.price import RunFacts
from fedrec.plan.protections import Price
from fedrec.plan.schema import Plan

KEPT_SUMS = 20
"""Rounds whose ciphertext sums a coordinator keeps, for members that missed them.

Snapshots replace older ones. Without such sums, it keeps those of all rounds."""
FITTED = ("none", "bfv")
"""Protections under which memory and processor time were measured: `benchmarks/bench_sizing.py`."""
_MB = 1_000_000
_CLIENT_BYTES = 86_000
"""Of the coordinator's memory for a connection and a waiting call: `bench_idle_clients.py`."""
_BUFFERS_BYTES = 80 * _MB
"""The maximum for uploads that arrive together: `bench_flower_deployed.py --parts memory`."""
_ROW_BYTES = 1_000
"""Of the coordinator's database for each update: 620 measured."""
_MODEL_BYTES_A_SECOND = 40e9
"""Of the models that a rule makes, times clients: 943 took 3 to 6 s, 6,040 took 400 s."""


class SizeFacts(TypedDict):
    """The resident memory, the disk and the processor time of a party.

    The disk is its folder at the end of the run, without data files and reserves. The time is that
    of one core in a round, without training and measuring. Memory and time are None if nothing
    similar was measured, which is under other protections than `FITTED`.
    """

    memory_bytes: int | None
    disk_bytes: int
    processor_seconds: float | None


def sizes(
    plan: Plan, found: Price[RunFacts], *, own_users: int, memory_mib: int
) -> tuple[Price[SizeFacts], ...]:
    """Return what the coordinator, the key authority and one client need.

    Bytes on the wire follow from the plan, and disk from the files that a party keeps. All other
    constants for memory and processor time were fitted to `benchmarks/bench_sizing.py`.

    Args:
        plan: the shared settings.
        found: the price of a run of this plan.
        own_users: users of one client.
        memory_mib: `client.memory_mib`.

    Returns:
        A price for each party, whose bytes are all that it sends and receives in a round.
    """
    fitted, facts = plan.protection.name in FITTED, found.facts
    algorithm = algorithm_of(plan, facts["n_items"])
    n_clients, n_rounds, n_items = facts["n_clients"], facts["n_rounds"], facts["n_items"]
    up, down, opened = found.up_bytes, found.down_bytes, found.authority_bytes
    every = plan.authority_opens or not facts["is_encrypted"]
    kept = n_rounds if every else min(n_rounds, KEPT_SUMS)
    # Of each client's own model, the coordinator keeps the last one, and the next while it is made.
    own = own_model_bytes(plan, facts["n_rows"])
    rule = rule_bytes(n_clients, own) if algorithm.derived.personalises else 0
    tables = table_bytes(own_users, algorithm.derived.private_widths)
    # A round's scores, and three versions of the tables with the trainer's copy.
    limit = memory_mib << 20
    work = min(20 * own_users * n_items, limit) + min(4 * tables, limit)
    coordinator = _size(
        "coordinator",
        fitted,
        110 * _MB + _CLIENT_BYTES * n_clients + min(2 * n_clients * up, _BUFFERS_BYTES) + rule,
        # Published sums, one round's updates and their sum, and rows about all updates.
        2 * _MB + kept * (down - own) + n_clients * (up + 2 * own + _ROW_BYTES * n_rounds) + up,
        n_clients * (0.01 + 0.01 * up / _MB + n_clients * own / _MODEL_BYTES_A_SECOND),
        up_bytes=n_clients * down + opened,
        down_bytes=n_clients * up,
    )
    authority = _size(
        "authority",
        fitted,
        100 * _MB + (35 * _MB + 32 * up if opened else 0),
        # The last two opened sums and their models, and two messages while it adds up.
        2 * _MB + (4 * down + 2 * up if opened else 0),
        0.08 + (0.055 * up + 0.008 * opened) / _MB if opened else 0.08,
        up_bytes=down if opened else 0,
        down_bytes=opened,
    )
    client = _size(
        "client",
        fitted,
        430 * _MB + 10 * (up + down) + work,
        # Versions of the model and the sums between them, an upload, and versions of the tables.
        2 * _MB + 7 * down + up + room_on_disk(tables),
        0.15 + 0.06 * up / _MB,
        up_bytes=up,
        down_bytes=down,
    )
    return coordinator, authority, client


def _size(
    name: str,
    fitted: bool,
    memory: int,
    disk: int,
    seconds: float,
    *,
    up_bytes: int,
    down_bytes: int,
) -> Price[SizeFacts]:
    facts: SizeFacts = {
        "memory_bytes": memory if fitted else None,
        "disk_bytes": disk,
        "processor_seconds": round(seconds, 3) if fitted else None,
    }
    return Price(name=name, up_bytes=up_bytes, down_bytes=down_bytes, facts=facts)
