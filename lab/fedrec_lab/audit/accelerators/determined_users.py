"""The compiled part of `fedrec_lab.audit.sums`: the users that pair counts determine.

Compiled functions carry no annotations: numba derives the types from the call.
"""

from __future__ import annotations

from numba import njit

from fedrec.compiling import COMPILED


@njit(**COMPILED)
def _decides(gram, one, other):
    """Return whether each item is certainly held, or certainly not, by the one user of a pair."""
    of_one, of_other = gram[one], gram[other]
    for item in range(len(gram)):
        with_one, with_other = of_one[item], of_other[item]
        if with_one == 0 or with_other == 0:
            continue
        if with_one == of_one[one] or with_other == of_other[other]:
            continue
        if with_one + with_other > gram[item, item]:
            continue
        return False
    return True


@njit(**COMPILED)
def look_for_users(gram, pointers, items, unknown, alone, found):
    """Mark users with a pair of their own in `alone`, and determined users in `found`, in place.

    Only users that are still `unknown` are checked. `gram` has only these users' counts.
    """
    for user in range(len(unknown)):
        if not unknown[user]:
            continue
        begin, end = pointers[user], pointers[user + 1]
        for first in range(begin, end):
            for second in range(first, end):
                one, other = items[first], items[second]
                if gram[one, other] != 1:
                    continue
                alone[user] = True
                if not found[user] and _decides(gram, one, other):
                    found[user] = True
