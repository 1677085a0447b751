"""Which sums over one version of the model may be opened one after the other.

A round that was given up after its survivors were named is repeated from the same version, where
its clients contribute the same, or nearly so. Two sums whose survivors differ by a single client
would give that client's update away, with nobody colluding. So clients sign a second set of
survivors only if whoever is left out of it, or new in it, is as many clients as a sum must have;
and no third set, because several differences could be combined.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.ids import ClientId

__all__ = ["MOST_SETS", "Survivors", "invited", "may_open"]

Survivors = frozenset[ClientId]
MOST_SETS = 2
"""Different sets for one version. Of three, two differences could leave one client over."""


def may_open(earlier: Sequence[Survivors], found: Survivors, minimum: int) -> bool:
    """Tell whether a set may be opened after others of the same version.

    Args:
        earlier: the sets of this version that may have been opened.
        found: the clients in the sum.
        minimum: the fewest clients of whom a sum may say something.
    """
    if not earlier or found in earlier:
        return True
    if len(earlier) >= MOST_SETS:
        return False
    apart = (earlier[0] - found, found - earlier[0])
    return all(not part or len(part) >= minimum for part in apart)


def invited(earlier: Sequence[Survivors], live: Survivors, minimum: int) -> Survivors:
    """Return the live clients with whom a round may be repeated: all of an earlier set, if here.

    Where some of the only earlier set are missing, as many more are left out as it takes for a
    difference of `minimum` clients, those first whose ids come first; clients that were not in it
    come in if they are as many.

    Args:
        earlier: as for `may_open`.
        live: the clients that are here.
        minimum: as for `may_open`.
    """
    if not earlier:
        return live
    for one in earlier:
        if one <= live:
            return one
    if len(earlier) >= MOST_SETS:
        return frozenset()
    first = earlier[0]
    spare = max(0, minimum - len(first - live))
    kept = frozenset(sorted(first & live)[spare:])
    new = live - first
    return kept | new if len(new) >= minimum else kept
