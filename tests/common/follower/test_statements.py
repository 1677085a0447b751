"""The key authority's statements are a chain: what follows, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrec.errors import RefusedError
from fedrec.follower.statements import check_follows
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import RevealStatement

KNOWN = RevealStatement(
    federation="films",
    run="run",
    round=RoundId(4),
    epoch=1,
    client_id=ClientId("a" * 64),
    manifest_digest=bytes(32),
    sequence=4,
    signature=b"s" * 64,
)


def after(sequence: int, previous: bytes) -> RevealStatement:
    return replace(KNOWN, round=RoundId(5), sequence=sequence, previous=previous)


def test_the_next_names_the_one_before():
    check_follows(after(5, KNOWN.digest()), KNOWN)
    with pytest.raises(RefusedError, match="expected one that names it"):
        check_follows(after(5, bytes(32)), KNOWN)


def test_its_digest_is_of_all_of_it():
    others = (
        replace(KNOWN, signature=b"t" * 64),
        replace(KNOWN, trained=1),
        replace(KNOWN, charged=1),
        replace(KNOWN, kind="count"),
        replace(KNOWN, previous=b"p" * 32),
        replace(KNOWN, sequence=5),
    )
    assert len({KNOWN.digest(), *(other.digest() for other in others)}) == 1 + len(others)
    # The signature covers what is new, too.
    covered = {KNOWN.statement(), *(other.statement() for other in others[1:])}
    assert len(covered) == len(others)


def test_later_ones_may_follow_an_unknown_one():
    check_follows(after(6, bytes(32)), KNOWN)
    check_follows(after(1, bytes(32)), None)


@pytest.mark.parametrize("sequence", [4, 3, 0])
def test_earlier_ones_and_second_ones_are_refused(sequence):
    with pytest.raises(RefusedError, match="doesn't follow 4, on round 4: expected a later one"):
        check_follows(after(sequence, KNOWN.digest()), KNOWN)
