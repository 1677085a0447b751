"""Scenario 8: masks come from a 256-bit key and AES in counter mode, and no key comes twice.

A published framework folded its mask seeds to 32 bits and drew from numpy's RandomState (Flower,
issue 7522), which is easy to search; so the stream is compared with published vectors, and the
folders that make keys and masks may not even import such a generator.
"""

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from common.protection.masks.cohort import Cohort, keystream, make_people
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

import fedrec
from fedrec.protection.masks import collector as collector_module
from fedrec.protection.masks import participant as participant_module
from fedrec.protection.masks.keys import add_mask

# McGrew and Viega, The Galois/Counter mode of operation, test cases 13 and 14: a key of 256 zero
# bits encrypts the counters 0, 1 and 2 to the hash key, the tag and the ciphertext.
ZERO_KEY_BLOCKS = (
    "dc95c078a2408989ad48a21492842087"
    "530f8afbc74536b9a963b4f1c4cb738b"
    "cea7403d4d606b6e074ec5d3baf39d18"
)


def test_scenario_08_published_vectors():
    assert keystream(bytes(32), 12).astype("<u4").tobytes().hex() == ZERO_KEY_BLOCKS


def test_scenario_08_another_mode_gives_the_same_stream():
    """Counter mode is the block cipher applied to 0, 1, 2, ...; across pieces of 1 MiB too."""
    key = bytes(range(32))
    n_blocks = 70_000
    counters = b"".join(number.to_bytes(16, "big") for number in range(n_blocks))
    expected = Cipher(AES256(key), ECB()).encryptor().update(counters)
    assert keystream(key, 4 * n_blocks).astype("<u4").tobytes() == expected


@pytest.mark.parametrize("bit", [0, 31, 32, 100, 255])
def test_scenario_08_every_bit_of_the_key_counts(bit):
    """A seed folded to fewer bits would give equal masks for some of these keys."""
    key = (1 << bit).to_bytes(32, "big")
    assert (keystream(key, 100) != keystream(bytes(32), 100)).sum() > 95


def test_scenario_08_no_other_length_of_key_is_taken():
    for length in (4, 16, 31, 33):
        with pytest.raises(ValueError):
            keystream(bytes(length), 4)


def test_scenario_08_no_key_is_used_for_two_masks(monkeypatch):
    """Over three rounds of the same people every mask has a key of its own.

    Participants use the key of a pair twice, once on either side, and their own key once.
    """
    used: Counter[bytes] = Counter()
    taken_off: Counter[bytes] = Counter()

    def counting(counter):
        def counted(words, key, sign, *, n_wide):
            counter[key] += 1
            add_mask(words, key, sign, n_wide=n_wide)

        return counted

    monkeypatch.setattr(participant_module, "add_mask", counting(used))
    monkeypatch.setattr(collector_module, "add_mask", counting(taken_off))
    people = make_people(6)
    for round_id in (1, 2, 3):
        cohort = Cohort.of(6, people=people, round_id=round_id)
        found = cohort.run(before={4})
        np.testing.assert_array_equal(found, cohort.total(without={4}))
    # The five that masked: a pair mask with each other on both sides, one with the sixth, and
    # one of their own.
    assert sorted(used.values()) == sorted([2] * 3 * 10 + [1] * 3 * 5 + [1] * 3 * 5)
    assert all(len(key) == 32 for key in used)
    assert len(taken_off) == 3 * (5 + 5) and set(taken_off.values()) == {1}
    assert set(taken_off) <= set(used)


def test_scenario_08_nothing_that_makes_keys_or_masks_can_reach_another_generator():
    root = Path(fedrec.__file__).parent
    files = [*(root / "protection").rglob("*.py"), *(root / "identity").rglob("*.py")]
    assert len(files) > 30
    found = [hit for file in files for hit in forbidden(file.read_text(), file.name)]
    assert found == []


def test_scenario_08_the_search_finds_what_it_looks_for():
    for source in (
        "import random",
        "from random import randbytes",
        "import numpy.random",
        "from numpy import random",
        "import numpy as np\nnp.random.default_rng(0)",
        "import torch\ntorch.randn(3)",
        "from fedrec.random_streams import uniform",
    ):
        assert forbidden(source, "file"), source
    assert not forbidden("import secrets\nsecrets.token_bytes(32)", "file")


def forbidden(source, name):
    """Return where a module imports or names a generator that is not for secrets."""
    banned = ("random", "numpy.random", "torch", "fedrec.random_streams")
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute) and node.attr == "random":
            names = ["random"]
        hits = [one for one in names if one in banned or one.startswith(("random.", "torch."))]
        found += [f"{name}:{node.lineno} {hit}" for hit in hits]
    return found
