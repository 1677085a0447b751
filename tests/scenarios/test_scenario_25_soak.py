"""Scenario 25, SOAK: a federation that works for an hour holds no more at its end than before.

Coordinator, key authority and clients are processes of their own; rounds follow one another without
a pause. Memory that no file backs, open descriptors and threads are sampled in each process. Time
itself is not judged. `FEDREC_SOAK_SECONDS` sets how long the long form takes.
"""

import os

import pytest
from world.soak import Growth, Held, growth, soak

pytestmark = pytest.mark.slow

SHORT_SECONDS = 20.0
FULL_SECONDS = float(os.environ.get("FEDREC_SOAK_SECONDS", "3600"))

MEGABYTE = 1 << 20
SHORT_BYTES = 12 * MEGABYTE
"""In the short form: a round that leaves 200 KB behind is found, and allocators may settle."""
SHORT_THREADS = 2
"""In the short form a pool may still start threads, which it does where none is free."""
BYTES_IN_TEN_MINUTES = 1 * MEGABYTE


def check(folder, protection, seconds, every, allowed, threads=0):
    """Let a federation work, and find no process that holds more and more."""
    samples, rounds = soak(folder, protection, seconds=seconds, every_seconds=every)
    assert rounds[-1] > rounds[0] + 5, "the federation hardly worked"
    found = {name: growth(held) for name, held in samples.items()}
    for name, held in samples.items():
        print(
            f"{protection} {name}: {held[0].bytes / MEGABYTE:.1f} MB at first, "
            f"{held[-1].bytes / MEGABYTE:.1f} at the end of {rounds[-1] - rounds[0]} rounds, "
            f"trend {found[name].bytes / MEGABYTE:+.2f} MB, {found[name].files:+d} descriptors"
        )
    for name, one in found.items():
        assert one.bytes <= allowed, f"{name} grows: {one}"
        assert one.files <= 0 and one.threads <= threads, f"{name} grows: {one}"


def test_scenario_25_half_a_minute(tmp_path):
    check(tmp_path, "bfv", SHORT_SECONDS, 0.5, SHORT_BYTES, SHORT_THREADS)


@pytest.mark.hours
@pytest.mark.timeout(FULL_SECONDS + 600)
@pytest.mark.parametrize("protection", ["bfv", "masks"])
def test_scenario_25_an_hour(tmp_path, protection):
    allowed = BYTES_IN_TEN_MINUTES * FULL_SECONDS / 600 + MEGABYTE
    check(tmp_path, protection, FULL_SECONDS, max(0.5, FULL_SECONDS / 1800), allowed)


def of(*sizes, files=9):
    """Return made-up samples."""
    return [Held(bytes=size, files=files, threads=4) for size in sizes]


def test_scenario_25_a_leak_is_found_and_a_peak_is_none():
    # After the warm-up 60 samples are left, 59 steps of 1,000 bytes.
    leak = growth(of(*(1_000 * number for number in range(100))))
    assert leak == Growth(bytes=59_000, files=0, threads=0)
    warming = [1_000 * min(number, 30) for number in range(100)]
    assert growth(of(*warming)).bytes == 0
    peaks = [5_000 if number % 10 == 0 else 100 for number in range(100)]
    assert growth(of(*peaks)).bytes == 0
    assert growth([*of(*[1] * 80), *of(*[1] * 20, files=10)]).files == 1
    assert growth([*of(*[1] * 80), *of(*[1] * 10, files=10), *of(*[1] * 10)]).files == 0
