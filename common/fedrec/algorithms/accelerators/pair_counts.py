"""The compiled half of `ease`: counting and weighing the pairs of items that users hold.

Compiled functions carry no annotations: numba derives the types from the call.
"""

from __future__ import annotations

from numba import njit

from fedrec.compiling import COMPILED


@njit(**COMPILED)
def count_pairs(pointers, items, first, counts):
    """Add each user's pairs of items, from the pair numbered `first` on, to `counts` in place.

    Items i < j are the pair j (j - 1) / 2 + i. `items` ascend within a user, and user u's are
    items[pointers[u] : pointers[u + 1]].
    """
    last = first + len(counts)
    for user in range(len(pointers) - 1):
        begin = pointers[user]
        for place in range(begin + 1, pointers[user + 1]):
            item = items[place]
            column = item * (item - 1) // 2
            if column >= last:
                break
            if column + item <= first:
                continue
            for other in range(begin, place):
                pair = column + items[other]
                if first <= pair < last:
                    counts[pair - first] += 1


@njit(**COMPILED)
def add_pairs(pointers, items, first, sums, of_pair, of_item):
    """Add values for each user's pairs and items, from the entry numbered `first` on, in place.

    Items i <= j are the entry j (j + 1) / 2 + i of the triangle with its diagonal. User u adds
    of_item[u] to the entry (j, j) of each of its items, and of_pair[u] to those of its pairs.
    `items` are as in `count_pairs`.
    """
    last = first + len(sums)
    for user in range(len(pointers) - 1):
        begin = pointers[user]
        for place in range(begin, pointers[user + 1]):
            item = items[place]
            column = item * (item + 1) // 2
            if column >= last:
                break
            if column + item < first:
                continue
            for other in range(begin, place + 1):
                entry = column + items[other]
                if first <= entry < last:
                    sums[entry - first] += of_item[user] if other == place else of_pair[user]
