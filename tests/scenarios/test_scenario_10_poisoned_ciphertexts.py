"""Scenario 10, POISON-CTX, for bfv and ckks: bad ciphertexts are refused before they are summed.

What cannot be told from a good one without the key, a ciphertext of another key under the right
name, is refused when it is opened. Whole rounds are in `test_scenario_10_poisoned_rounds.py`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from conformance.protection_suite import Party, make_party

from fedrec.errors import MalformedUpdate, RevealRefused
from fedrec.protection import PROTECTIONS, SegmentSpec, VectorSpec
from fedrec.protection.ciphertext_blocks import ResidueLayout

HEADER_BYTES = 44
SPEC = VectorSpec(
    segments=(SegmentSpec(name="all", length=5000, max_abs_sum=10**6),), max_summands=4
)
SETS = [("bfv", "default"), ("ckks", "lean")]


@pytest.fixture(scope="module", params=SETS, ids="-".join)
def party(request):
    name, preset = request.param
    return make_party(PROTECTIONS[name], preset, SPEC)


@pytest.fixture(scope="module")
def good(party):
    return party.member.protect(np.ones(SPEC.length, dtype=np.int64))


def foreign(party, preset):
    """Return a message of other parameters, or of the same and another key."""
    kind = PROTECTIONS["ckks" if preset in ("lean", "paper") else "bfv"]
    return make_party(kind, preset, SPEC).member.protect(np.zeros(SPEC.length, dtype=np.int64))


def under_its_name(party, good, body):
    """Return a body under the right header, cut or filled to the right length."""
    length = len(good) - HEADER_BYTES
    return good[:HEADER_BYTES] + body[:length].ljust(length, b"\0")


BAD: dict[str, Callable[[Party, bytes], bytes]] = {
    "foreign key": lambda party, good: foreign(party, party.protection.chosen.preset),
    "other parameters": lambda party, good: foreign(party, "paper"),
    "short": lambda party, good: good[:-1],
    "long": lambda party, good: good + b"\0",
    "empty": lambda party, good: b"",
    "residues above their primes": lambda party, good: under_its_name(
        party, good, b"\xff" * len(good)
    ),
    "random 60 kB": lambda party, good: np.random.default_rng(1).bytes(60_000),
    "a vector that TenSEAL crashes on": lambda party, good: b"\x08\x01\x12\x00",
}


@pytest.mark.parametrize("poison", BAD)
def test_scenario_10_refused_before_the_sum_changes(party, good, poison):
    accumulator = party.protection.accumulator(party.context)
    accumulator.add(good)
    before = accumulator.finish()
    with pytest.raises(MalformedUpdate):
        accumulator.add(BAD[poison](party, good))
    assert accumulator.finish() == before
    accumulator.add(good)
    revealed = party.member.reveal(accumulator.finish(), 2)
    assert (revealed == 2).all()


def test_scenario_10_a_message_of_another_scale_is_another_plan(party, good):
    """The scale is no field that a peer could change: it follows from the plan."""
    segment = replace(SPEC.segments[0], max_abs_sum=10**9)
    spec = replace(SPEC, segments=(segment,))
    kind, preset = type(party.protection), party.protection.chosen.preset
    other = make_party(kind, preset, spec).member.protect(np.zeros(spec.length, dtype=np.int64))
    with pytest.raises(MalformedUpdate, match="different protection plan"):
        accumulator = party.protection.accumulator(party.context)
        accumulator.add(other if len(other) == len(good) else other[:44] + good[44:])


def test_scenario_10_a_transparent_ciphertext_counts_for_nothing(party, good):
    """(m, 0) is readable by every client and no ciphertext; its counter gives it away, too."""
    empty = under_its_name(party, good, b"")
    accumulator = party.protection.accumulator(party.context)
    accumulator.add(good)
    before = accumulator.finish()
    with pytest.raises(MalformedUpdate, match="transparent"):
        accumulator.add(empty)
    assert accumulator.finish() == before


def random_residues(party):
    """Return a body of random residues, each below its prime: a ciphertext under no key.

    Bytes of other parameters are nearly that, too, but for one residue in a million that is not
    below the prime; then they are refused before the sum, in about one message of thirty.
    """
    layout = ResidueLayout.of_plan(party.protection.chosen)
    rng = np.random.default_rng(10)
    primes = np.array(layout.primes, dtype=np.uint64)[:, None]
    shape = (party.protection.chosen.n_blocks, *layout.shape)
    return b"".join(map(layout.pack, rng.integers(0, primes, size=shape, dtype=np.uint64)))


UNTOLD: dict[str, Callable[[Party, bytes], bytes]] = {
    "foreign key": lambda party, good: foreign(party, party.protection.chosen.preset)[44:],
    "random residues": lambda party, good: random_residues(party),
    "NaN": lambda party, good: np.full(len(good) // 8, np.nan).tobytes(),
}


@pytest.mark.parametrize("poison", UNTOLD)
def test_scenario_10_an_unreadable_sum_is_refused_when_revealed(party, good, poison):
    forged = under_its_name(party, good, UNTOLD[poison](party, good))
    accumulator = party.protection.accumulator(party.context)
    for message in (good, good, forged):
        accumulator.add(message)
    with pytest.raises(RevealRefused):
        party.member.reveal(accumulator.finish(), 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scenario_10_nan_is_no_integer_and_never_encrypted(party, value):
    with pytest.raises(MalformedUpdate, match="float64"):
        party.member.protect(np.full(SPEC.length, value))


def test_scenario_10_no_native_parser_sees_what_a_peer_sent():
    """The coordinator's process adds and refuses without SEAL: nothing there can crash it."""
    code = (
        "import sys\n"
        "import fedrec_server.app\n"
        "from fedrec.protection import ciphertext_blocks, lattice, protection_plan\n"
        "assert not {'tenseal', '_tenseal_cpp', 'fedrec_client'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
