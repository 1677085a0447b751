"""The draw of those who may open a round."""

import hashlib
from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fedrec.ids import ClientId, RoundId
from fedrec.wire.committee import COMMITTEE, QUORUM, committee_digest, draw, is_drawn

CLIENTS = tuple(ClientId(hashlib.sha256(bytes([n])).hexdigest()) for n in range(12))


def drawn(seed: bytes, clients: tuple[ClientId, ...] = CLIENTS) -> tuple[ClientId, ...]:
    return draw(seed, "run", RoundId(1), clients)


def test_two_quorums_share_a_member() -> None:
    """Which is why no round can have two lists that are vouched for."""
    for one, other in combinations(combinations(range(COMMITTEE), QUORUM), 2):
        assert set(one) & set(other)


@given(st.permutations(CLIENTS), st.binary(min_size=32, max_size=32))
def test_the_order_of_the_clients_does_not_matter(
    clients: tuple[ClientId, ...], seed: bytes
) -> None:
    found = drawn(seed)
    assert drawn(seed, tuple(clients)) == found
    assert len(set(found)) == COMMITTEE


def test_everything_enters_the_draw() -> None:
    one = draw(b"seed", "run", RoundId(1), CLIENTS)
    assert one != draw(b"other", "run", RoundId(1), CLIENTS)
    assert one != draw(b"seed", "other", RoundId(1), CLIENTS)
    assert one != draw(b"seed", "run", RoundId(2), CLIENTS)
    assert committee_digest("run", RoundId(1), one) != committee_digest("run", RoundId(2), one)
    assert committee_digest("run", RoundId(1), one) != committee_digest(
        "run", RoundId(1), one[::-1]
    )
    assert committee_digest("run", RoundId(1), ()) == b""


def test_everybody_is_drawn_equally_often() -> None:
    """Each of 12 clients is in 3 of 12 committees: 1,000 of 4,000, standard deviation 27."""
    counts = Counter(c for n in range(4000) for c in drawn(n.to_bytes(32, "big")))
    assert set(counts) == set(CLIENTS)
    assert all(abs(count - 1000) < 5 * 27.4 for count in counts.values())


@given(
    st.binary(min_size=32, max_size=32),
    st.sets(st.sampled_from(CLIENTS), min_size=1),
    st.permutations(CLIENTS),
)
def test_a_chosen_committee_is_noticed_unless_it_ranks_first(
    seed: bytes, contributors: set[ClientId], others: tuple[ClientId, ...]
) -> None:
    """A coordinator gets its favourites in only where no contributor ranks before them."""
    favourites = tuple(others[:COMMITTEE])
    honest = drawn(seed, tuple(contributors | set(favourites)))
    accepted = is_drawn(favourites, contributors, seed=seed, run="run", round_id=RoundId(1))
    assert accepted == (favourites == honest)
