"""What masks cost: a whole round of many clients in this process, with dropouts.

Every client makes its keys, shares its secrets, masks its vector and gives its shares as it would
over a network; a tenth of them vanish after their shares, before their vectors. Times are those
of one client (a sample of them, each alone) and of the coordinator: what it does for every vector
that arrives, and what unmasking the sum takes once the last answer is there, by number of
threads. The sum is compared with the plain one.

Only clients of the sample check signatures, because a thousand clients that check each other's in
turn are no work of any one machine.

    python benchmarks/bench_masks.py [--clients 1000] [--values 100000] [--runs 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from unittest.mock import patch

import cryptography
import numpy as np
from measuring import describe_machine, summary

from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import RoundId
from fedrec.protection.masks import (
    Collector,
    KeyList,
    MaskTerms,
    MaskWords,
    Participant,
    Tolerance,
    parameters_for,
    plan_masks,
)
from fedrec.protection.masks import participant as participant_module
from fedrec.protection.vector import SegmentSpec, VectorSpec

SAMPLE = 5
SEED = b"benchmark"
Result = TypeVar("Result")


class Clock:
    """Seconds by what was done, for the sample of clients and for the coordinator."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def time(self, name: str, action: Callable[[], Result]) -> Result:
        """Do something and note how long it took."""
        begin = time.perf_counter()
        result = action()
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)
        return result

    def print(self) -> None:
        """Print a line for everything that was timed."""
        for name, values in self.seconds.items():
            print(f"  {name}: {summary([1000 * value for value in values], 'ms')}")


@contextmanager
def signatures_unchecked() -> Iterator[None]:
    """Take signatures on trust, for clients that are not in the sample."""
    with (
        patch.object(KeyList, "verify", lambda *_: None),
        patch.object(participant_module, "verify", lambda *_: None),
    ):
        yield


def make_roster(n_clients: int) -> tuple[list[Identity], Roster]:
    """Return identities in the order of the roster, and the roster, unsigned."""
    people = sorted((Identity.create() for _ in range(n_clients)), key=lambda one: one.client_id)
    roster = Roster(
        federation="benchmark",
        epoch=1,
        members=tuple(person.public for person in people),
        minimum_summands=10,
        protection="masks",
        protection_fingerprint="00" * 32,
        context_sha256=bytes(32),
        secrets_sha256=bytes(32),
        authority_key=bytes(32),
        ca_sha256=bytes(32),
    )
    return people, roster


def measure(n_clients: int, n_values: int, runs: int, *, malicious: bool) -> None:
    """Run one round and print what it cost."""
    tolerance = Tolerance(corrupt_share=0.1, dropout_share=0.1, malicious=malicious)
    graph = parameters_for(n_clients, tolerance)
    bound = 2**31 - 1
    segment = SegmentSpec(name="values", length=n_values, max_abs_sum=bound)
    spec = VectorSpec(segments=(segment,), max_summands=n_clients)
    words = MaskWords(spec, plan_masks(spec))
    people, roster = make_roster(n_clients)
    terms = MaskTerms(
        federation="benchmark",
        run="run",
        round=RoundId(1),
        epoch=1,
        terms_digest=bytes(32),
        minimum_summands=10,
        n_members=n_clients,
        tolerance=tolerance,
    )
    kind = "malicious" if malicious else "semi-honest"
    print(f"{n_clients} clients, {n_values} values, {kind}: k = {graph.degree}, ", end="")
    print(f"t = {graph.threshold}, {words.plan.message_bytes / n_values:.3f} bytes a value")
    clock = Clock()
    collector = Collector(terms, roster, words, graph_seed=SEED)
    clients = run_until_answers(clock, collector, terms, roster, people, words, bound)
    for threads in (1, 2):
        for _ in range(runs):
            found = clock.time(
                f"coordinator, unmask with {threads} threads",
                lambda threads=threads: collector.unmask(threads=threads),
            )
            np.testing.assert_array_equal(found, clients)
    clock.print()


def run_until_answers(
    clock: Clock,
    collector: Collector,
    terms: MaskTerms,
    roster: Roster,
    people: list[Identity],
    words: MaskWords,
    bound: int,
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Play the clients up to their answers; return the plain sum of the survivors' vectors."""
    n_clients = len(people)
    rng = np.random.default_rng(0)
    gone = set(rng.permutation(n_clients)[: n_clients // 10].tolist())
    sample = [own for own in range(n_clients) if own not in gone][:SAMPLE]
    largest = bound // n_clients

    def step(name: str, own: int, action: Callable[[], Result]) -> Result:
        if own in sample:
            return clock.time(f"a client, {name}", action)
        with signatures_unchecked():
            return action()

    participants = []
    for person in people:
        participant, keys = Participant.begin(terms, person)
        participants.append(participant)
        clock.time("coordinator, a client's keys", lambda keys=keys: collector.add_keys(keys))
    key_list = collector.close_keys()
    for own, participant in enumerate(participants):
        bundle = step(
            "check keys and share", own, lambda p=participant: p.share(key_list, roster, SEED)
        )
        collector.add_shares(people[own].client_id, bundle)
    collector.close_shares()
    total = np.zeros(words.spec.length, dtype=np.int64)
    for own in sorted(set(range(n_clients)) - gone):
        client_id, participant = people[own].client_id, participants[own]
        vector = rng.integers(-largest, largest, words.spec.length, endpoint=True)
        total += vector
        inbox, plain = collector.inbox(client_id), words.encode(vector)
        masked = step(
            "mask",
            own,
            lambda p=participant, i=inbox, w=plain: p.mask(i, w, n_wide=words.n_wide),
        )
        message = words.message(masked)
        clock.time(
            "coordinator, a vector",
            lambda c=client_id, m=message: collector.add_vector(c, m),
        )
    survivors = collector.close_vectors()
    remaining = sorted(set(range(n_clients)) - gone)
    for own in remaining:
        signature = participants[own].sign(survivors, people[own], roster)
        collector.add_signature(people[own].client_id, signature)
    collector.close_signatures()
    for own in remaining:
        signatures = collector.signatures_for(people[own].client_id)
        given = step(
            "check signatures and give shares",
            own,
            lambda p=participants[own], s=signatures: p.give(s, roster),
        )
        collector.add_answer(people[own].client_id, given)
    assert collector.can_unmask
    return total


def main() -> None:
    """Measure both kinds of coordinator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--values", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{describe_machine()}, cryptography {cryptography.__version__}")
    for malicious in (False, True):
        measure(arguments.clients, arguments.values, arguments.runs, malicious=malicious)


if __name__ == "__main__":
    main()
