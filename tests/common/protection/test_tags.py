"""Tags: right for exactly the sum of the signed messages, wrong for every other one."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrec.errors import KeysError
from fedrec.protection.tags import TAGS, Tagging

KEY = bytes(range(32))
MODULI = (1032193, 4294475777, 1099511480321)
SLOTS, BLOCKS = 16, 3


def messages(n: int, seed: int = 1) -> tuple[NDArray[np.int64], list[bytes]]:
    drawn = np.random.default_rng(seed).integers(-1000, 1000, (n, BLOCKS, SLOTS))
    return drawn.astype(np.int64), [f"client {index}".encode() for index in range(n)]


def centred(values: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """Return what a decryption gives: residues from -modulus/2 to modulus/2."""
    residues = np.mod(values, modulus)
    return np.where(residues > modulus // 2, residues - modulus, residues)


@pytest.mark.parametrize("modulus", MODULI)
@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 100))
def test_the_sum_of_the_signed_messages_passes(modulus, n, seed):
    tagging = Tagging(KEY, modulus, SLOTS)
    slots, names = messages(n, seed)
    tags = np.stack([tagging.of_message(m, name) for m, name in zip(slots, names, strict=True)])
    assert (np.abs(tags) <= modulus // 2).all()
    total = centred(tags.sum(0), modulus)
    assert tagging.are_right(slots.sum(0), total, names)
    assert tagging.are_right(slots.sum(0), total, names[::-1])


Forgery = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[object, object]]

FORGERIES: dict[str, Forgery] = {
    "one message as the sum": lambda slots, tags: (slots[0], tags[0]),
    "one left out": lambda slots, tags: (slots[1:].sum(0), tags[1:].sum(0)),
    "one counted twice": lambda slots, tags: (slots.sum(0) + slots[0], tags.sum(0) + tags[0]),
    "one in another's place": lambda slots, tags: (
        slots.sum(0) + slots[0] - slots[1],
        tags.sum(0) + tags[0] - tags[1],
    ),
    "slots masked out": lambda slots, tags: (
        slots.sum(0) * (np.arange(SLOTS) < 4),
        tags.sum(0),
    ),
    "all slots multiplied": lambda slots, tags: (2 * slots.sum(0), 2 * tags.sum(0)),
    "a constant added": lambda slots, tags: (slots.sum(0) + 1, tags.sum(0)),
    "blocks exchanged": lambda slots, tags: (slots.sum(0)[::-1], tags.sum(0)[::-1]),
    "nothing at all": lambda slots, tags: (0 * slots[0], 0 * tags[0]),
}


@pytest.mark.parametrize("modulus", MODULI)
@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_whatever_else_a_coordinator_makes_of_them_fails(modulus, forgery):
    """The attacker has what it has in truth: ciphertexts, that is linear maps of slots and tags."""
    tagging = Tagging(KEY, modulus, SLOTS)
    slots, names = messages(4)
    tags = np.stack([tagging.of_message(m, name) for m, name in zip(slots, names, strict=True)])
    forged_slots, forged_tags = forgery(slots, tags)
    assert not tagging.are_right(forged_slots, forged_tags, names)  # type: ignore[arg-type]


def test_tags_of_another_round_or_key_fail():
    modulus = MODULI[1]
    slots, names = messages(3)
    tagging, other = Tagging(KEY, modulus, SLOTS), Tagging(bytes(32), modulus, SLOTS)
    total = np.stack(
        [tagging.of_message(m, name) for m, name in zip(slots, names, strict=True)]
    ).sum(0)
    assert not other.are_right(slots.sum(0), total, names)
    assert not tagging.are_right(slots.sum(0), total, [name + b"'" for name in names])


def test_a_tag_is_what_the_formula_says():
    """Two messages of one name differ by <w, m - m'>, and by nothing where m = m'."""
    modulus = MODULI[0]
    tagging = Tagging(KEY, modulus, SLOTS)
    unit = np.zeros((1, SLOTS), dtype=np.int64)
    pad = tagging.of_message(unit, b"name")
    weights = []
    for slot in range(SLOTS):
        unit[:] = 0
        unit[0, slot] = 1
        weights.append((tagging.of_message(unit, b"name") - pad)[0] % modulus)
    message = np.arange(SLOTS, dtype=np.int64).reshape(1, SLOTS) - 5
    expected = [
        sum(int(m) * int(w[tag]) for m, w in zip(message[0], weights, strict=True)) % modulus
        for tag in range(TAGS)
    ]
    found = (tagging.of_message(message, b"name") - pad)[0] % modulus
    assert found.tolist() == expected


def test_tags_look_uniform_whatever_is_tagged():
    """Without the pads' key a tag says nothing: zeros and large values spread alike."""
    modulus = MODULI[0]
    tagging = Tagging(KEY, modulus, SLOTS)
    for value in (0, 999):
        slots = np.full((2000, SLOTS), value, dtype=np.int64)
        tags = tagging.of_message(slots, b"name")
        # Of 8,000 uniform values the mean is within 5 of its standard deviations of 0.
        assert abs(tags.mean()) < 5 * modulus / np.sqrt(12 * tags.size)


def test_a_short_key_is_refused():
    with pytest.raises(KeysError, match="32 bytes"):
        Tagging(b"short", MODULI[0], SLOTS)
