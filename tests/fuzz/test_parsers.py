"""Scenario 24, SIM-FUZZ, the parsers: damaged bytes are refused by name, never by an accident.

Each parser gets damaged copies of valid bytes here, drawn from a seed; in the long form atheris
makes them, for `FUZZ_SECONDS` (600) each. A crash is kept in the folder `FUZZ_CRASHES`
(`fuzz-crashes`), beside the command that replays it.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.mutations import mutated
from fuzz.run import read
from fuzz.target import Target, from_proto, is_refused
from fuzz.targets import TARGETS, target

from fedrec.errors import FedrecError, ProtocolError
from fedrec.wire import convert
from fedrec.wire.v1 import update_pb2

TESTS = Path(__file__).parents[1]
DAMAGED = 100
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))
CRASHES = Path(os.environ.get("FUZZ_CRASHES", "fuzz-crashes"))
MAKING_SECONDS = 120
"""For imports under instrumentation, and keys."""


# A damaged certificate may be read, with a warning.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_scenario_24_damaged_bytes_are_refused_by_name(name):
    found, choose = target(name), random.Random(name)
    for seed in found.seeds:
        assert not is_refused(found, seed), "this version does not read what it writes"
    for _ in range(DAMAGED):
        data = mutated(choose, found.seeds)
        try:
            found.read(data)
        except FedrecError as error:
            assert error.message
        except Exception as error:
            raise AssertionError(f"{name}: {error!r} at {data!r}") from error


@pytest.mark.hours
@pytest.mark.timeout(FUZZ_SECONDS + MAKING_SECONDS + 60)
@pytest.mark.parametrize("name", TARGETS)
def test_scenario_24_atheris(name):
    ended = atheris(name, FUZZ_SECONDS, CRASHES)
    seen = (ended.stdout + ended.stderr)[-4_000:]
    assert ended.returncode == 0 and "DONE" in seen, f"{name}, inputs in {CRASHES}:\n{seen}"
    print(seen.strip().splitlines()[-1])


def atheris(name, seconds, crashes):
    """Fuzz one parser in a process of its own."""
    command = [sys.executable, "-m", "fuzz.run", name, "--seconds", str(seconds)]
    return subprocess.run(
        [*command, "--crashes", str(crashes.resolve())],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + MAKING_SECONDS,
    )


def test_what_a_parser_may_not_raise_is_found():
    def careless(data):
        return data[7]

    with pytest.raises(IndexError):
        is_refused(Target(read=careless, seeds=(b"12345678",)), b"short")
    reader = from_proto(update_pb2.BlobHeader, lambda one: convert.BLOB.from_proto(one, "blob"))
    with pytest.raises(ProtocolError):
        reader(update_pb2.BlobHeader(length=3, digest=b"short").SerializeToString())
    assert reader(b"\xff") is None


def test_damage_follows_from_its_seed_and_is_of_every_kind():
    seeds = (b'{"a":[1,{"b":"c"}]}', b"plain bytes")
    made = [mutated(random.Random(number), seeds) for number in range(300)]
    assert made == [mutated(random.Random(number), seeds) for number in range(300)]
    assert len({len(data) for data in made}) > 15
    assert any(b"null" in data for data in made)


def test_a_kept_input_is_replayed(tmp_path):
    (tmp_path / "input").write_bytes(target("mask keys").seeds[0])
    assert read("mask keys", (tmp_path / "input").read_bytes())
    assert not read("mask keys", b"\x08")
