"""What the rows of the CoLR paper's Table 3 cost here: planned sizes, measured seconds.

An update is what the paper's table counts: its values alone, without counts and metrics, each at
most 2^20 grid steps, from at most 64 clients of one user (1 % of the 6,040 users take part). Under
the sets that can send Top-K as the paper does, every value comes with its index, encrypted or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from fedrec.errors import InternalError
from fedrec.protection import PROTECTIONS, ProtectionPlan, SegmentSpec, VectorSpec
from fedrec.protection.plan import INDEX_BYTES
from fedrec_lab.papers.colr_costs import CostRow

__all__ = ["N_CLIENTS", "OwnCosts", "own_costs"]

T = TypeVar("T")

N_CLIENTS = 60
MOST_CLIENTS = 64
GRID_BITS = 20

_SETS = {
    "ckks": (
        ("ckks", "paper"), ("ckks", "lean"), ("bfv", "default"), ("paillier", "packed-3072"),
    ),
    "paillier": (
        ("paillier", "paper"), ("paillier", "single-3072"), ("paillier", "packed-3072"),
        ("bfv", "default"),
    ),
}  # fmt: skip
_SLOW = "paillier"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCosts:
    """A row under one of our parameter sets.

    Attributes:
        cipher_bytes: an encrypted update, exactly.
        plain_bytes: the same update without protection, exactly.
        client_seconds: protecting an update and revealing a sum; None where nothing was timed.
        server_seconds: adding the updates of `N_CLIENTS` clients; None where nothing was timed.
        sampled_values: how many values were timed, the seconds being scaled up; 0 for all.
    """

    protection: str
    preset: str
    cipher_bytes: int
    plain_bytes: int
    client_seconds: float | None = None
    server_seconds: float | None = None
    sampled_values: int = 0

    @property
    def ratio(self) -> float:
        """The paper's Comm Ratio: an encrypted update over the same update without protection."""
        return self.cipher_bytes / self.plain_bytes


def own_costs(row: CostRow, *, sample: int, timed: bool = True) -> tuple[OwnCosts, ...]:
    """Return what a row costs under each of the sets that go with it.

    Args:
        sample: ciphertexts that are timed where each takes milliseconds; the rest is scaled.
        timed: whether to measure seconds at all.
    """
    return tuple(_cost(row, name, preset, sample, timed) for name, preset in _SETS[row.scheme])


def _cost(row: CostRow, name: str, preset: str, sample: int, timed: bool) -> OwnCosts:
    spec = _spec(row.n_values)
    plan = PROTECTIONS[name].plan(spec, preset=preset)
    with_index = row.scheme == "paillier" and plan.n_blocks == plan.n_values
    indices = INDEX_BYTES * row.n_values if with_index else 0
    costs = partial(
        OwnCosts,
        protection=name,
        preset=preset,
        cipher_bytes=plan.message_bytes + indices,
        plain_bytes=PROTECTIONS["none"].plan(spec).message_bytes + indices,
    )
    if not timed:
        return costs()
    n_values = row.n_values
    if name == _SLOW and plan.n_blocks > sample:
        n_values = sample * (row.n_values // plan.n_blocks)
    client, server, timed_plan = _seconds(name, preset, n_values)
    share = plan.n_blocks / timed_plan.n_blocks
    return costs(
        client_seconds=client * share,
        server_seconds=server * share * N_CLIENTS,
        sampled_values=n_values if n_values < row.n_values else 0,
    )


def _spec(n_values: int) -> VectorSpec:
    values = SegmentSpec(name="values", length=n_values, max_abs_sum=MOST_CLIENTS << GRID_BITS)
    return VectorSpec(segments=(values,), max_summands=MOST_CLIENTS)


def _seconds(name: str, preset: str, n_values: int) -> tuple[float, float, ProtectionPlan]:
    """Return the seconds of one client, and those of adding one update."""
    spec = _spec(n_values)
    protection = PROTECTIONS[name](spec, PROTECTIONS[name].plan(spec, preset=preset))
    context, secret = protection.generate()
    with secret:
        member = protection.member(context, secret)
    random = np.random.default_rng(0)
    vector = random.integers(-(1 << GRID_BITS), 1 << GRID_BITS, n_values, dtype=np.int64)
    # The first message also makes a member's tables, once for the life of the process.
    first = member.protect(vector)
    message, protecting = _timed(lambda: member.protect(vector))
    total = protection.accumulator(context)
    total.add(first)
    _, adding = _timed(lambda: total.add(message))
    found, revealing = _timed(lambda: member.reveal(total.finish(), 2))
    if not np.array_equal(found, 2 * vector):
        raise InternalError(f"A sum under {name}/{preset} came out wrong.")
    member.close()
    return protecting + revealing, adding, protection.chosen


def _timed(action: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    found = action()
    return found, time.perf_counter() - began
