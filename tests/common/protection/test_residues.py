"""Residues: packing, parity with SEAL's own addition, and hostile bytes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conformance.protection_suite import make_party

from fedrec.errors import MalformedUpdate
from fedrec.protection import PROTECTIONS, SegmentSpec, VectorSpec
from fedrec.protection.ciphertext_blocks import ResidueLayout, Residues
from fedrec.protection.lattice import BlockMember

SMALL = VectorSpec(segments=(SegmentSpec(name="all", length=10, max_abs_sum=1000),), max_summands=4)


def random_block(layout: ResidueLayout, seed: int) -> Residues:
    rng = np.random.default_rng(seed)
    size = (2, layout.degree)
    parts = [rng.integers(0, prime, size, dtype=np.uint64) for prime in layout.primes]
    return np.stack(parts, axis=1)


@pytest.mark.parametrize(
    "sizes", [(54, 55), (60, 49), (60, 40, 40, 60), (24, 30), (31, 30), (47, 30), (57, 30)]
)
def test_blocks_survive_packing(sizes):
    layout = ResidueLayout.of(1024, sizes)
    block = random_block(layout, 1)
    block[0, :, 0] = np.array(layout.primes, dtype=np.uint64) - np.uint64(1)
    frame = layout.pack(block)
    assert len(frame) == layout.frame_bytes == sum(2 * 1024 * bits // 8 for bits in sizes[:-1])
    assert np.array_equal(layout.unpack(frame), block)


def test_a_residue_that_is_its_prime_is_refused():
    layout = ResidueLayout.of(4096, (54, 55))
    block = random_block(layout, 1)
    block[1, 0, 77] = layout.primes[0]
    with pytest.raises(MalformedUpdate):
        layout.unpack(layout.pack(block))


def test_addition_is_addition_modulo_the_primes():
    layout = ResidueLayout.of(1024, (60, 40, 40, 60))
    first, second = random_block(layout, 1), random_block(layout, 2)
    moduli = np.array(layout.primes, dtype=object)[:, None]
    expected = (first.astype(object) + second.astype(object)) % moduli
    layout.add_to(first, second)
    assert (first.astype(object) == expected).all()


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("bfv", "default"),
        ("bfv", "wide"),
        ("ckks", "lean"),
        ("ckks", "paper"),
    ],
)
def test_the_plain_twin_is_addition_by_seal(name, preset):
    party = make_party(PROTECTIONS[name], preset, SMALL)
    assert isinstance(party.member, BlockMember)
    cipher = party.member._open_cipher()
    layout = ResidueLayout.of_plan(party.protection.chosen)
    values = [slot % 7 for slot in range(cipher.n_slots)]
    first, second = cipher.encrypt(values).copy(), cipher.encrypt(values)
    by_seal = cipher._loaded(first)
    by_seal += cipher._loaded(second)
    _, payload = cipher._serialised(by_seal)
    layout.add_to(first, second)
    assert payload.endswith(first.tobytes())


@pytest.mark.slow
def test_the_coordinator_needs_no_tenseal():
    party = make_party(PROTECTIONS["bfv"], "default", SMALL)
    message = party.member.protect(np.arange(10))
    plan = party.protection.chosen
    code = (
        "import sys\n"
        "from fedrec.protection import BFV, ProtectionPlan, SegmentSpec, VectorSpec\n"
        f"spec = {SMALL!r}\n"
        f"protection = BFV(spec, {plan!r})\n"
        f"accumulator = protection.accumulator({party.context!r})\n"
        "accumulator.add(sys.stdin.buffer.read())\n"
        "assert 'tenseal' not in sys.modules\n"
        "sys.stdout.buffer.write(accumulator.finish())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=message, capture_output=True, check=True, timeout=60
    )
    assert party.member.reveal(done.stdout, 1).tolist() == list(range(10))


HOSTILE = """
import random
import numpy as np
from fedrec.errors import FedrecError
from fedrec.protection import PROTECTIONS, SegmentSpec, VectorSpec

random.seed(7)
spec = VectorSpec(
    segments=(SegmentSpec(name="all", length=10, max_abs_sum=1000),), max_summands=4
)
counts = {"added": 0, "wrong": 0}
for name in ("bfv", "ckks"):
    protection = PROTECTIONS[name](spec, PROTECTIONS[name].plan(spec))
    context, secret = protection.generate()
    member = protection.member(context, secret)
    good = member.protect(np.arange(10))
    for trial in range(150):
        raw = bytearray(good)
        kind = trial % 3
        if kind == 0:
            raw[44:] = random.randbytes(len(raw) - 44)
        elif kind == 1:
            for _ in range(random.choice((1, 8, 64))):
                raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        else:
            raw = raw[: random.randrange(len(raw))]
        accumulator = protection.accumulator(context)
        try:
            accumulator.add(bytes(raw))
            counts["added"] += 1
            revealed = member.reveal(accumulator.finish(), 1)
            counts["wrong"] += not np.array_equal(revealed, np.arange(10))
        except FedrecError:
            pass
print(counts["added"], counts["wrong"])
"""


@pytest.mark.slow
def test_hostile_bytes_never_crash_and_never_reveal_as_something_else():
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    added, wrong = map(int, done.stdout.split())
    assert added > 50, "well-formed garbage is a valid ciphertext for whoever has no key"
    assert wrong == 0, "a flipped low bit may drown in the noise, but never change a value"
