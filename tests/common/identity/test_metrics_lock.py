"""Metrics that two statements about the same open, and two about different things do not."""

from itertools import combinations

import pytest

from fedrec.errors import BadSignature
from fedrec.identity.metrics_lock import BOX_OVERHEAD_BYTES, box_of, share_of, unlock

KEY = bytes(range(32))
METRICS = b"loss and hits"


def test_any_two_of_three_open_it() -> None:
    box = box_of(KEY, b"round 1", METRICS)
    assert len(box) == len(METRICS) + BOX_OVERHEAD_BYTES
    for pair in combinations((1, 2, 3), 2):
        shares = {place: share_of(KEY, b"round 1", place) for place in pair}
        assert unlock(box, shares) == METRICS


def test_who_opens_sums_alone_opens_it_alone() -> None:
    box = box_of(KEY, b"round 1", METRICS)
    for place in (1, 2):
        assert unlock(box, {place: share_of(KEY, b"round 1", place, alone=True)}) == METRICS
    for wrong in (share_of(KEY, b"round 1", 1), share_of(KEY, b"round 2", 1, alone=True)):
        with pytest.raises(BadSignature):
            unlock(box, {1: wrong})


def test_all_key_holders_make_the_same_box() -> None:
    assert box_of(KEY, b"round 1", METRICS) == box_of(KEY, b"round 1", METRICS)
    assert box_of(KEY, b"round 1", METRICS) != box_of(KEY, b"round 2", METRICS)
    assert box_of(KEY, b"round 1", METRICS) != box_of(bytes(32), b"round 1", METRICS)


@pytest.mark.parametrize(
    "shares",
    [
        {1: share_of(KEY, b"round 1", 1)},
        {1: share_of(KEY, b"round 1", 1), 2: share_of(KEY, b"another list", 2)},
        {1: share_of(KEY, b"round 1", 1), 2: share_of(bytes(32), b"round 1", 2)},
        {1: share_of(KEY, b"round 1", 2), 2: share_of(KEY, b"round 1", 1)},
        {1: b"", 2: b"rubbish"},
        {},
    ],
)
def test_nothing_less_opens_it(shares: dict[int, bytes]) -> None:
    """A coordinator with one share of each of two lists is as far as without any."""
    with pytest.raises(BadSignature):
        unlock(box_of(KEY, b"round 1", METRICS), shares)


def test_a_changed_box_does_not_open() -> None:
    box = bytearray(box_of(KEY, b"round 1", METRICS))
    box[0] ^= 1
    with pytest.raises(BadSignature):
        unlock(bytes(box), {place: share_of(KEY, b"round 1", place) for place in (1, 2)})
