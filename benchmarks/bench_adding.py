"""The coordinator's time for each update that it adds, against TenSEAL's own way.

Three sides, in turn: what the coordinator does here (check the frame, unpack residues, add them
modulo the primes) under the given set; the same under the paper's CKKS set; and what a service does
that follows TenSEAL's tutorials under the paper's set, N = 16384 with primes of 60, 40, 40 and 60
bits: `ckks_vector_from` and `+=`, one vector for each block of 8,192 values. The same values are in
all messages, sums are compared at the end, and the messages are made before the clock starts.

First comes what a round keeps of its clients, without messages: the state machine's checks and step
for each update, and the sum that follows it. It has to be linear in the clients, also where they
are summed in cells and a round wants half of the cells it asks.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tenseal
from measuring import describe_machine, interleaved, print_ratio, summary

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.machine import client, header, rules

from fedrec.identity.cells import Cell, Partition
from fedrec.protection import PROTECTIONS, Accumulator, SegmentSpec, VectorSpec
from fedrec.protection.protection import in_one_step
from fedrec_server.rounds.collecting import taken
from fedrec_server.rounds.events import Tick, Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.uploads.round_sum import RunningSum

N_UPDATES = 8
PAPER_DEGREE, PAPER_BITS, PAPER_SCALE = 16384, [60, 40, 40, 60], 2.0**40


class Ours:
    """Updates under one of our sets, and the coordinator's sum of them."""

    def __init__(self, name: str, preset: str, values: list[np.ndarray]) -> None:
        segment = SegmentSpec(
            name="values",
            length=len(values[0]),
            max_abs_sum=1 << 27,
        )
        spec = VectorSpec(segments=(segment,), max_summands=64)
        kind = PROTECTIONS[name]
        self._protection = in_one_step(kind(spec, kind.plan(spec, preset=preset)))
        self._context, secret = self._protection.generate()
        self._member = self._protection.member(self._context, secret)
        self.messages = [self._member.protect(vector) for vector in values]

    def add(self) -> bytes:
        """Do what a coordinator does with a round's updates, and return the sum."""
        total = self._protection.accumulator(self._context)
        for message in self.messages:
            total.add(message)
        return total.finish()

    def largest_error(self, expected: np.ndarray) -> int:
        """Return how far the revealed sum is off, in grid units."""
        found = self._member.reveal(self.add(), len(self.messages))
        return int(np.abs(found - expected).max())


class Tutorial:
    """The same updates as TenSEAL's vectors, and a service that parses and adds them."""

    def __init__(self, values: list[np.ndarray]) -> None:
        context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS, PAPER_DEGREE, coeff_mod_bit_sizes=PAPER_BITS, n_threads=1
        )
        context.global_scale = PAPER_SCALE
        slots = PAPER_DEGREE // 2
        self.messages = [
            [
                tenseal.ckks_vector(context, vector[at : at + slots].tolist()).serialize()
                for at in range(0, len(vector), slots)
            ]
            for vector in values
        ]
        self._secret = context
        self._context = tenseal.context_from(
            context.serialize(
                save_public_key=False,
                save_secret_key=False,
                save_galois_keys=False,
                save_relin_keys=False,
            ),
            n_threads=1,
        )

    def add(self) -> list[tenseal.CKKSVector]:
        """Parse and add all updates."""
        totals: list[tenseal.CKKSVector] = []
        for message in self.messages:
            blocks = [tenseal.ckks_vector_from(self._context, raw) for raw in message]
            if not totals:
                totals = blocks
                continue
            for total, block in zip(totals, blocks, strict=True):
                total += block
        return totals

    def largest_error(self, expected: np.ndarray) -> float:
        """Return how far the decrypted sum is off, in grid units."""
        key = self._secret.secret_key()
        found = np.concatenate([total.decrypt(key) for total in self.add()])
        return float(np.abs(found - expected).max())


class Nothing(Accumulator):
    """Adds nothing up."""

    @property
    def count(self) -> int:
        """Return that it is empty."""
        return 0

    def add(self, message: bytes) -> None:
        """Take a message."""

    def add_from(self, file: BinaryIO) -> None:
        """Take a message from a file."""

    def finish(self) -> bytes:
        """Return no sum."""
        return b""


def bookkeeping_seconds(n_clients: int, n_cells: int = 0) -> float:
    """Return the processor seconds that a round takes to count `n_clients` updates, unread."""
    clients = [client(number) for number in range(n_clients)]
    minimum = n_clients
    partition, wanted = Partition(), {}
    if n_cells:
        cells = (
            Cell(id=place + 1, since=1, core=tuple(clients[place::n_cells]))
            for place in range(n_cells)
        )
        partition, minimum = Partition(cell_size=3, cells=tuple(cells)), 3
        wanted = {"cells_per_round": n_cells // 2, "over_provision": 2.0}
    plain = rules(needs_reveal=False, minimum_clients=minimum, **wanted)
    state = State(rules=replace(plain, partition=partition), roster=frozenset(clients))
    state, _ = step(state, Tick(now=0.0, live=state.roster))
    random.Random(0).shuffle(clients)
    events = [Uploaded(now=0.0, header=header(1, each)) for each in clients]
    total = RunningSum(Nothing, lambda header: b"")
    began = time.process_time()
    for event in events:
        if state.current is not None and state.current.phase == "summing":
            break
        for _ in range(2):
            # Before its bytes are read, and before they are kept.
            assert not taken(state, event.header)[1]
        assert state.current is not None
        before = state.current.accepted
        state, _ = step(state, event)
        total.add(before, event.header, BytesIO())
    assert state.current is not None and state.current.phase == "summing"
    total.finish(state.current.accepted)
    return time.process_time() - began


def main() -> None:
    """Print the time of one added update of each side, their ratios, and a round's bookkeeping."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=100_000, help="values of an update")
    parser.add_argument("--runs", type=int, default=7, help="interleaved runs of each side")
    parser.add_argument("--only-bookkeeping", action="store_true", help="leave messages out")
    options = parser.parse_args()
    print(describe_machine())
    for n_clients, n_cells in ((8_000, 0), (8_000, 1_000), (100_000, 0)):
        found = [bookkeeping_seconds(n_clients, n_cells) for _ in range(3)]
        where = f" in {n_cells:,} cells" if n_cells else ""
        print(f"bookkeeping of {n_clients:,} updates{where}, processor: {summary(found)}")
    if options.only_bookkeeping:
        return
    values_of = np.random.default_rng(0)
    values = [
        values_of.integers(-(1 << 23), 1 << 23, options.values, dtype=np.int64)
        for _ in range(N_UPDATES)
    ]
    expected = np.sum(values, axis=0)
    sets = [("bfv", "default"), ("ckks", "lean"), ("ckks", "paper")]
    ours = {f"{name}/{preset}": Ours(name, preset, values) for name, preset in sets}
    tutorial = Tutorial(values)
    for name, side in ours.items():
        length = len(side.messages[0])
        print(
            f"{name:<17} {length:>10,} bytes, sum of {N_UPDATES} off by at most "
            f"{side.largest_error(expected)} grid units"
        )
    length = sum(map(len, tutorial.messages[0]))
    off = tutorial.largest_error(expected)
    print(f"{'TenSEAL, paper':<17} {length:>10,} bytes, sum off by at most {off:.2g} grid units")

    label = "TenSEAL, paper's set"
    sides = {label: tutorial.add} | {name: side.add for name, side in ours.items()}
    seconds = interleaved(sides, runs=options.runs)
    each = {name: [1e3 * value / N_UPDATES for value in found] for name, found in seconds.items()}
    print(f"milliseconds for each update of {options.values:,} values that is added:")
    for name, found in each.items():
        print(f"  {name}: {summary(found, 'ms')}")
    for name in ours:
        print(f"{label} against {name}, seconds for {N_UPDATES} updates:")
        print_ratio(label, name, seconds)


if __name__ == "__main__":
    main()
