"""A user's contribution is that user's alone: the same bits in any company, on any threads.

The suite goes through `Learner.contribute` and the registry, so that it holds whatever trains. It
runs in the tests' own process, and as a process of its own under another arithmetic:

    python -m conformance.invariance [--threads COUNT] CASE ...

prints what the process is and every difference it found, as one JSON object; with `--digests` only
the bits of the cases.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np
import torch
from conformance.party import ALGORITHM_SETTINGS, N_ITEMS, N_USERS, ROUND, Party, plan_of
from numpy.typing import NDArray
from world.plans import users_of

from fedrec.algorithms import ALGORITHMS
from fedrec.arithmetic import arithmetic_of
from fedrec.data import UserSplit
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.plan.algorithm import accelerator_of
from fedrec.plan.schema import Plan
from fedrec.probes import look
from fedrec.tensor_products import product_of_blocks
from fedrec.training.learner import Contribution

TWOS = "in twos"
BLOCK = 8
"""What trains side by side in a full block of the smallest kind."""
GRID, FINEST = "fraction_bits", 40
"""How a setting's name ends that a grid follows from, and its largest value."""
DIMS = (5, 32)
"""Shorter than a vector register, and several of them."""
SHAPES = "shapes"
"""The case of products alone."""
CASES = [
    f"{name}-{structure}-{dim}"
    for name in sorted(ALGORITHMS)
    for structure in ALGORITHMS[name].about.supports.updates
    for dim in (DIMS if "dim" in ALGORITHM_SETTINGS.get(name, {}) else (0,))
]
"""An algorithm of the registry, an update structure that it goes with, and a length of vectors."""
MIXING = "plgc-dense-0-mixing"
"""PLGC without a regulariser, which compiled code trains."""
BY_THE_TRAINER = "-trainer"
"""Behind a case that compiled code would train: without it."""


def plan_of_case(case: str) -> Plan:
    """Return what a case trains with; batches are shorter than some users' samples.

    The grid is the finest there is, so that it rounds no difference away.
    """
    name, structure, dim, *_ = case.split("-")
    own = {"weight": 0.0} if case == MIXING else {}
    kind = ALGORITHMS[name]
    finest = {key: FINEST for key in kind.settings_type.model_fields if key.endswith(GRID)}
    return plan_of(
        name,
        structure,
        algorithm=({"dim": int(dim)} if int(dim) else {}) | own | finest,
        training={"accelerated": not case.endswith(BY_THE_TRAINER)},
        update={} if kind.about.range_instead else {GRID: FINEST},
    )


CASES += [MIXING] + [
    case + BY_THE_TRAINER for case in CASES if accelerator_of(plan_of_case(case)) is not None
]


def all_users() -> UserSplit:
    """Return users of unequal activity; some items are held by too few of them to be trained."""
    return users_of(N_USERS, N_ITEMS, thin=0.3)


def groupings(n_users: int) -> Mapping[str, list[NDArray[np.int64]]]:
    """Return ways of dealing the users to clients; the first of a group trains first."""
    rows = np.arange(n_users)
    mixed = np.random.default_rng(1).permutation(n_users)
    return {
        TWOS: np.array_split(rows, n_users // 2),
        "in blocks of eight": [mixed[start : start + BLOCK] for start in range(0, n_users, BLOCK)],
        "together": [rows],
        "together, in reverse": [rows[::-1].copy()],
    }


def differences(case: str, counts: Sequence[int] = (1, 2)) -> list[str]:
    """Return a line for every way of training a case's users that gives other bits.

    Args:
        counts: of threads to train groups with; each user alone is trained with one.
    """
    if case == SHAPES:
        return differing_shapes()
    party = Party.of(plan_of_case(case), all_users())
    n_users, found = len(party.users), []
    with threads(1):
        alone = [party.train(party.users.select(np.array([row]))) for row in range(n_users)]
    assert any(own.vector.any() for own in alone), "nothing was trained"
    for n_threads in counts:
        for name, groups in groupings(n_users).items():
            # Little memory is that of three users: two are in one block, as with much.
            for small in (False, True) if name != TWOS else (False,):
                how = f"{name}, {n_threads} threads, {'little' if small else 'much'} memory"
                with threads(n_threads):
                    wrong = {
                        part
                        for rows in groups
                        for part in differing_parts(party, alone, rows, small=small)
                    }
                found += [f"{case}, {how}: {part}" for part in sorted(wrong)]
    return found


def differing_parts(
    party: Party, alone: Sequence[Contribution], rows: NDArray[np.int64], *, small: bool
) -> Iterator[str]:
    """Yield the parts of a group's contribution that are not those of its users alone."""
    client = Party.of(party.learner.server.plan, party.users)
    if small:
        client.learner.local.memory_bytes = 3 * client.algorithm.bytes_per_user(N_ITEMS, 1)
    own = client.train(party.users.select(rows), shared=party.shared)
    layout = party.learner.server.travelling.layout("train", party.shared)
    total = np.sum([alone[row].vector for row in rows], axis=0)
    wanted, got = layout.changes_of(total), layout.changes_of(own.vector)
    yield from (name for name in wanted if not np.array_equal(wanted[name], got[name]))
    for name, part in (("counts", layout.count_slice), ("metrics", layout.metrics_slice)):
        if not np.array_equal(total[part], own.vector[part]):
            yield name
    for name, values in own.private.tensors.items():
        apart = np.concatenate([alone[row].private.tensors[name] for row in rows])
        if not np.array_equal(values, apart):
            yield f"private {name}"


def differing_shapes() -> list[str]:
    """Return the products of rows that depend on how many rows there are, or on threads."""
    random, found = np.random.default_rng(2), []
    for inner in (1, 5, 8, 32, 100):
        for n_columns in (1, 7, 32, 200):
            rows = torch.from_numpy(random.normal(size=(200, inner)).astype(np.float32))
            matrix = torch.from_numpy(random.normal(size=(inner, n_columns)).astype(np.float32))
            with threads(1):
                whole = product_of_blocks(rows, matrix)
            for n_rows in (1, 2, BLOCK, 16, 17, 200):
                for n_threads in (1, 2):
                    with threads(n_threads):
                        part = product_of_blocks(rows[:n_rows], matrix)
                    if not torch.equal(part, whole[:n_rows]):
                        found.append(
                            f"{n_rows} x {inner} by {inner} x {n_columns}, {n_threads} threads"
                        )
    return found


def digest_of(case: str) -> str:
    """Return a short name for the bits of every user's contribution."""
    party = Party.of(plan_of_case(case), all_users())
    own = party.train()
    parts = [own.vector.tobytes()]
    parts += [own.private.tensors[name].tobytes() for name in sorted(own.private.tensors)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def applied(case: str) -> str:
    """Return a short name for the bits of a next version: those of every machine.

    What is applied are integers that are drawn, so that training plays no part.
    """
    party = Party.of(plan_of_case(case), all_users())
    layout, random = (
        party.learner.server.travelling.layout("train", party.shared),
        np.random.default_rng(4),
    )
    changes = {
        tensor.name: random.integers(-(1 << 18) if tensor.signed else 1, 1 << 18, tensor.shape)
        for tensor in layout.tensors
    }
    counts, metrics = (
        random.integers(0, 9, layout.n_rows),
        np.zeros(len(METRIC_NAMES), dtype=np.int64),
    )
    vector = layout.pack(changes, counts, metrics)
    following = party.learner.server.apply("train", ROUND, party.shared, vector)
    assert following.canonical_bytes() != party.shared.canonical_bytes()
    return hashlib.sha256(following.canonical_bytes()).hexdigest()[:16]


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch compute on some threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> None:
    """Look at the cases that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--digests", action="store_true")
    asked = parser.parse_args()
    if asked.digests:
        print(json.dumps({case: digest_of(case) for case in asked.cases}))
        return
    counts = asked.threads or (1, 2)
    found = {
        "arithmetic": asdict(arithmetic_of("cpu")),
        "probes": {probe.name: probe.digest for probe in look()},
        "applied": {case: applied(case) for case in CASES},
        "differences": [line for case in asked.cases for line in differences(case, counts)],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
