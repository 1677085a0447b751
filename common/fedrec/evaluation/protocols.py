"""Rank held-out items under the protocols `full`, `sampled` and `paper`.

`full` ranks every item except the user's training items and, at test, its validation item.
`sampled` and `paper` rank the held-out item among 99 items drawn once per user from outside all its
interactions. They differ only in the training negatives. Items with too few holders are never
recommended: they rank below all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.mapped_items import MappedItems
from fedrec.data.splits import UserSplit
from fedrec.evaluation.metrics import N_CANDIDATES, Protocol, Split
from fedrec.random_streams import Purpose, mix, shift_right, stream_key, user_stream

__all__ = ["N_CANDIDATES", "Protocol", "Ranking", "draw_candidates", "held_out_ranks"]

_WORDS_AT_ONCE = 1 << 18
"""The number of random words to keep in memory while drawing, few enough for a processor's cache.
"""

_CANDIDATES_KEPT = 1 << 25
"""The largest number of users times places for which candidates are kept, at 9 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histories:
    """The arrays of a `UserSplit` that ranking reads, which processes can share."""

    user_keys: NDArray[np.int64]
    train_indptr: NDArray[np.int64]
    train_items: NDArray[np.int64] | MappedItems
    validation_items: NDArray[np.int64]
    test_items: NDArray[np.int64]

    @classmethod
    def of(cls, users: UserSplit) -> Histories:
        """Return the arrays of some users."""
        return cls(
            user_keys=users.user_keys(),
            train_indptr=users.train_indptr,
            train_items=users.train_items,
            validation_items=users.validation_items,
            test_items=users.test_items,
        )

    def part(self, begin: int, end: int) -> Histories:
        """Return the arrays of neighbouring users, from `begin` up to but not including `end`."""
        starts = self.train_indptr[begin : end + 1]
        return Histories(
            user_keys=self.user_keys[begin:end],
            train_indptr=starts - starts[0],
            train_items=self.train_items[starts[0] : starts[-1]],
            validation_items=self.validation_items[begin:end],
            test_items=self.test_items[begin:end],
        )


Candidates = tuple[torch.Tensor, torch.Tensor]
"""Each user's items to rank against, and which of these places are usable (`draw_candidates`)."""


class Ranking:
    """The held-out items of some users with their candidates, prepared once for many scorers.

    Args:
        users: the users with the held-out items.
        n_items: items in the whole catalogue.
        seed: the seed for drawing candidates under `sampled` and `paper`.
        device: the device of the scores.
        drawn: the users' candidates, if they were drawn before.
    """

    def __init__(
        self,
        users: UserSplit | Histories,
        n_items: int,
        *,
        seed: int,
        device: torch.device,
        drawn: Candidates | None = None,
    ) -> None:
        self.histories = users if isinstance(users, Histories) else Histories.of(users)
        self.n_items, self.seed = n_items, seed
        self._device, self._drawn = device, drawn

    def ranks(
        self,
        scores: torch.Tensor,
        rows: NDArray[np.int64],
        split: Split,
        protocol: Protocol,
        columns: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the expected 0-based rank of held-out items.

        Args:
            scores: float (n_rows, n_items). -inf for items that are never recommended. Left
                unchanged. A held-out item whose score is not a number ranks last.
            rows: positions of the scored users, int64 (n_rows,).
            columns: the items of the scores, ascending (n_columns,), if only some have any. All
                others are never recommended. None for all items.

        Returns:
            float64 (n_rows,): number of candidates with a higher score plus half the number of
            other candidates with an equal one. -1 for users without a held-out item.
        """
        users = self.histories
        held = (users.validation_items if split == "validation" else users.test_items)[rows]
        if columns is not None and not len(columns):
            # No item has a score, as if only the first had one and it were never recommended.
            scores, columns = scores.new_full((len(rows), 1), -torch.inf), np.zeros(1, np.int64)
        place = self._places(columns)
        own = _scores_at(scores, self._move(np.maximum(held, 0))[:, None], place)
        if protocol == "full":
            above, equal = self._against_all(scores, rows, split, own, place)
        else:
            items, usable = self._candidates(rows)
            candidate = _scores_at(scores, items, place)
            above = _count(~(candidate <= own) & usable)
            equal = _count((candidate == own) & usable)
        return np.where(held >= 0, above + 0.5 * equal, -1.0)

    def _places(self, columns: NDArray[np.int64] | None) -> torch.Tensor | None:
        """Return each item's column in the scores, or -1 if it has none. None: its own number."""
        if columns is None:
            return None
        place = torch.full((self.n_items,), -1, dtype=torch.int64, device=self._device)
        place[self._move(columns)] = torch.arange(len(columns), device=self._device)
        return place

    def _against_all(
        self,
        scores: torch.Tensor,
        rows: NDArray[np.int64],
        split: Split,
        own: torch.Tensor,
        place: torch.Tensor | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count better and equal items among all items that are candidates."""
        above, equal = _compared(scores, own)
        if place is not None:
            # Items without a score have -inf, which is not above any number.
            n_without = self.n_items - scores.shape[1]
            above += n_without * _count(torch.isnan(own))
            equal += n_without * _count(own == -torch.inf)
        owner, item = self._left_out(rows, split)
        user, reference = self._move(owner), own[self._move(owner), 0]
        column = self._move(item) if place is None else place[self._move(item)]
        score = scores[user, column.clamp(min=0)]
        score = torch.where(column >= 0, score, -torch.inf)
        for total, without in ((above, ~(score <= reference)), (equal, score == reference)):
            total -= np.bincount(owner[without.cpu().numpy()], minlength=len(rows))
        return above, equal

    def _left_out(
        self, rows: NDArray[np.int64], split: Split
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (row, item) of all items that are not candidates, including the held-out item."""
        users, place = self.histories, np.arange(len(rows))
        starts, sizes = users.train_indptr[rows], np.diff(users.train_indptr)[rows]
        owner = np.repeat(place, sizes)
        begins = np.cumsum(sizes) - sizes
        train = users.train_items[np.arange(len(owner)) + (starts - begins)[owner]]
        owners, items = [owner], [train]
        for held in (users.validation_items, users.test_items)[: 1 if split == "validation" else 2]:
            has = held[rows] >= 0
            owners.append(place[has])
            items.append(held[rows][has])
        return np.concatenate(owners), np.concatenate(items)

    def kept_candidates(self) -> Candidates | None:
        """Return all users' candidates, drawn once, or None if they are too many to keep.

        Drawing takes far longer than ranking.
        """
        keys = self.histories.user_keys
        if len(keys) * N_CANDIDATES > _CANDIDATES_KEPT:
            return None
        if self._drawn is None:
            self._drawn = self._draw(np.arange(len(keys)))
        return self._drawn

    def _candidates(self, rows: NDArray[np.int64]) -> Candidates:
        """Return the candidates of some users."""
        kept = self.kept_candidates()
        if kept is None:
            return self._draw(rows)
        where = self._move(rows)
        return kept[0][where], kept[1][where]

    def _draw(self, rows: NDArray[np.int64]) -> Candidates:
        owner, held = self._left_out(rows, "test")
        order = np.argsort(owner, kind="stable")
        keys = self.histories.user_keys[rows]
        return _draw(
            keys, owner[order], held[order], self.n_items, seed=self.seed, device=self._device
        )

    def _move(self, values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _compared(
    scores: torch.Tensor, own: torch.Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count each user's scores above the score of its held-out item, and scores equal to it."""
    first = scores[0]
    if scores.stride(0) == 0 and not bool(torch.isnan(first).any()):
        # One row for all users, such as popularity's, is sorted once.
        ordered, wanted = first.sort().values.cpu().numpy(), own[:, 0].cpu().numpy()
        below = np.searchsorted(ordered, wanted, side="right")
        return len(ordered) - below, below - np.searchsorted(ordered, wanted, side="left")
    # "Not lower or equal" instead of "higher", so that NaN never gains.
    if scores.device.type == "cpu":
        # numpy compares several times faster than torch.
        rows, wanted = scores.numpy(), own.numpy()
        return scores.shape[1] - _count(rows <= wanted), _count(rows == wanted)
    return scores.shape[1] - _count(scores <= own), _count(scores == own)


def _scores_at(
    scores: torch.Tensor, items: torch.Tensor, place: torch.Tensor | None
) -> torch.Tensor:
    """Return the scores of some items of each user, (n_rows, n_chosen).

    Args:
        items: int64 (n_rows, n_chosen).
        place: each item's column, or -1 if it has no score. None means its own number.
    """
    if place is None:
        return scores.gather(1, items)
    columns = place[items]
    return torch.where(columns >= 0, scores.gather(1, columns.clamp(min=0)), -torch.inf)


def _count(mask: torch.Tensor | NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of true values in each row, several times faster than numpy's sum."""
    if isinstance(mask, torch.Tensor):
        if mask.device.type != "cpu":
            return np.asarray(mask.sum(1).cpu().numpy())
        mask = mask.numpy()
    # With an axis, numpy would add up integers.
    return np.array([np.count_nonzero(row) for row in mask], dtype=np.int64)


def held_out_ranks(
    scores: torch.Tensor,
    users: UserSplit,
    split: Split,
    *,
    protocol: Protocol,
    seed: int,
) -> NDArray[np.float64]:
    """Return the expected 0-based rank of every user's held-out item, as `Ranking.ranks` does.

    Args:
        scores: float (n_users, n_items) over the whole catalogue.
        users: the same users in the same order.
    """
    ranking = Ranking(users, scores.shape[1], seed=seed, device=scores.device)
    return ranking.ranks(scores, np.arange(len(users)), split, protocol)


def draw_candidates(
    users: UserSplit, n_items: int, *, seed: int, device: torch.device
) -> Candidates:
    """Draw every user's 99 distinct items from outside all its interactions.

    They depend on the seed and the user alone, not on the round or the split.

    Returns:
        (items, usable), int64 and bool (n_users, n_candidates). Places are unusable if a user has
        fewer free items than places.
    """
    return Ranking(users, n_items, seed=seed, device=device)._draw(np.arange(len(users)))


def _draw(
    user_keys: NDArray[np.int64],
    owner: NDArray[np.int64],
    held: NDArray[np.int64],
    n_items: int,
    *,
    seed: int,
    device: torch.device,
) -> Candidates:
    """Draw users' candidates, given (user position, item) of all interactions by user."""
    n_users = len(user_keys)
    width = min(N_CANDIDATES, n_items)
    items = torch.empty((n_users, width), dtype=torch.int64, device=device)
    usable = torch.empty((n_users, width), dtype=torch.bool, device=device)
    keys = torch.from_numpy(user_keys).to(device)
    streams = user_stream(stream_key(seed, Purpose.EVALUATION_NEGATIVES), keys)
    order = torch.arange(n_items, device=device)
    last = torch.iinfo(torch.int64).max
    at_once = max(1, _WORDS_AT_ONCE // n_items)
    for start in range(0, n_users, at_once):
        part = slice(start, min(n_users, start + at_once))
        words = shift_right(mix(streams[part, None] + order[None, :]), 1)
        begin, end = np.searchsorted(owner, [part.start, part.stop]).tolist()
        cells = (owner[begin:end] - start, held[begin:end])
        words[tuple(torch.from_numpy(axis).to(device) for axis in cells)] = last
        # The candidates are the items with the smallest words: distinct and free.
        drawn = torch.topk(words, width, dim=1, largest=False)
        items[part], usable[part] = drawn.indices, drawn.values < last
    return items, usable
