"""Who may open a round: three clients drawn before anybody uploads, of whom two must agree.

Every contributor signs the committee that it was told of, and a sum is opened only by members of
the committee that all its contributors signed. Each member opens one list of contributions in a
round. Any two pairs out of three members share one, so no round has two lists that two members
vouch for: a coordinator cannot have two sums opened that differ by one client.

The order of the draw follows from a seed that no coordinator knows before the round before is
published: the keyed digest of the model that two key holders signed; for the first round, the
digest of the epoch's secrets that the key authority signed. What a coordinator still can do is
leave clients out, of the draw and of the round; whoever ranks before the committee must then not
be among the contributors either.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedrec.ids import ClientId, RoundId, digest

__all__ = ["COMMITTEE", "QUORUM", "ROUNDS_APART", "committee_digest", "draw", "is_drawn", "rank"]

COMMITTEE = 3
"""Members of a committee."""
ROUNDS_APART = 16
"""A round's number is at most so far above that of the published round that it starts from. With
as many numbers as it likes a coordinator would wait for the draw that it wants."""
QUORUM = 2
"""So many members must say the same; more than half, so that two quorums share a member."""


def rank(seed: bytes, run: str, round_id: RoundId, client_id: ClientId) -> bytes:
    """Return the bytes by which clients are ordered for a round, the first drawn first."""
    return digest("fedrec committee draw v1", seed, run, round_id, client_id)


def draw(
    seed: bytes, run: str, round_id: RoundId, clients: Iterable[ClientId]
) -> tuple[ClientId, ...]:
    """Return the committee of a round, in its order; fewer where there are fewer clients."""
    ordered = sorted(clients, key=lambda client: rank(seed, run, round_id, client))
    return tuple(ordered[:COMMITTEE])


def is_drawn(
    committee: tuple[ClientId, ...],
    contributors: Iterable[ClientId],
    *,
    seed: bytes,
    run: str,
    round_id: RoundId,
) -> bool:
    """Tell whether a committee is the one drawn from its members and these contributors."""
    return committee == draw(seed, run, round_id, {*committee, *contributors})


def committee_digest(run: str, round_id: RoundId, committee: tuple[ClientId, ...]) -> bytes:
    """Return the digest that a contributor signs; empty without a committee."""
    return digest("fedrec committee v1", run, round_id, *committee) if committee else b""
