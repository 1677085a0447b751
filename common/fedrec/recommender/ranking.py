"""Select the best items of a row of scores, without excluded ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue
from fedrec.ids import id_text
from fedrec.showing import Tabular, html_table

_SHOWN_ROWS = 20

Ids: TypeAlias = NDArray[np.object_]
"""Item ids, str. The empty string fills unused places."""
Scores: TypeAlias = NDArray[np.float32]
"""Scores, best first. -inf fills unused places."""


def best_items(scores: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    """Return the positions of the n best scores, best first, with ties in order of position.

    Args:
        scores: (n_items,), -inf for excluded items.

    Returns:
        int64 of shape (n,), or shorter where there is less to choose from.
    """
    width = min(n, int((scores > -np.inf).sum()))
    if width == 0:
        return np.empty(0, dtype=np.int64)
    # Everything at least as good as the width-th best, so that no tie is cut arbitrarily.
    least = np.partition(scores, len(scores) - width)[len(scores) - width]
    pool = np.nonzero(scores >= least)[0]
    return pool[np.argsort(-scores[pool], kind="stable")][:width]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankedItems(Tabular):
    """The best items for one question, or for several as rows of a table.

    ``ids, scores = found`` unpacks it.

    Attributes:
        asked: the users or items that the answer is about. Empty for a vector.
        ids: shape (n,), or (n_asked, n) padded to the longest answer.
        scores: the items' scores, of the same shape.
        catalogue: has the items' titles.
    """

    asked: tuple[str, ...]
    ids: Ids
    scores: Scores
    catalogue: Catalogue

    def __iter__(self) -> Iterator[Any]:
        """Yield ids and scores."""
        return iter((self.ids, self.scores))

    def __getitem__(self, index: int) -> Any:
        """Return ids (0) or scores (1)."""
        return (self.ids, self.scores)[index]

    @property
    def titles(self) -> NDArray[np.object_]:
        """The items' titles, or ids where these are missing, of the shape of `ids`."""
        found = np.empty(self.ids.shape, dtype=np.object_)
        flat = [self.catalogue.title_of(id_) if id_ else "" for id_ in self.ids.ravel().tolist()]
        found.ravel()[:] = flat
        return found

    def columns(self) -> Mapping[str, list[Any]]:
        """Return asked, rank, item_id, title and score, one row for each item."""
        used = np.atleast_2d(self.ids != "")
        ranks = np.broadcast_to(np.arange(1, used.shape[1] + 1), used.shape)
        asked = np.repeat(
            np.array(self.asked or ("",) * len(used), dtype=np.object_), used.sum(axis=1)
        )
        ids, titles, scores = (
            np.atleast_2d(part)[used].tolist() for part in (self.ids, self.titles, self.scores)
        )
        return {
            "asked": asked.tolist(),
            "rank": ranks[used].tolist(),
            "item_id": ids,
            "title": titles,
            "score": scores,
        }

    def _rows(self) -> list[tuple[str, ...]]:
        titled = any(self.catalogue.titles)
        return [
            (asked, str(rank), id_, *([title] if titled else []), f"{score:.3f}")
            for asked, rank, id_, title, score in zip(*self.columns().values(), strict=True)
        ]

    def __repr__(self) -> str:
        rows = self._rows()
        lines = ["  ".join(row).strip() for row in rows[:_SHOWN_ROWS]]
        more = len(rows) - len(lines)
        return "\n".join([*lines, *([f"and {more} more"] if more else [])]) or "no items"

    def _repr_html_(self) -> str:
        titles = ("title",) if any(self.catalogue.titles) else ()
        names = ("for", "rank", "item", *titles, "score")
        return html_table(names, self._rows(), caption="items")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vectors(Tabular):
    """The vectors of a model, with the id of each row.

    `Recommender.recommend_vector` scores a row of `users`. The product `users @ items.T` gives the
    scores only under algorithms that score by it, such as `fedals` and `ease`. `ease` and `sketch`
    keep no vectors of users: there a user's row is its history, with 1 or 0 for each item of
    `item_ids`. So rows of users and items differ in length under `sketch`.

    Attributes:
        user_ids: strings, shape (n_users,).
        users: float32 (n_users, dim), or (n_users, n_learned) for histories.
        item_ids: strings, the items that can be recommended, shape (n_learned,).
        items: float32 (n_learned, dim).
    """

    user_ids: Ids
    users: NDArray[np.float32]
    item_ids: Ids
    items: NDArray[np.float32]

    def columns(self) -> Mapping[str, list[Any]]:
        """Return kind ("user" or "item"), id and vector, one row for each user, then each item."""
        return {
            "kind": ["user"] * len(self.user_ids) + ["item"] * len(self.item_ids),
            "id": [*self.user_ids.tolist(), *self.item_ids.tolist()],
            "vector": [*self.users, *self.items],
        }

    def __repr__(self) -> str:
        return f"Vectors(users {self.users.shape}, items {self.items.shape})"


def asked_ids(ids: str | int | Sequence[str | int]) -> tuple[tuple[str, ...], bool]:
    """Return ids as text, and whether a single one was given."""
    if isinstance(ids, str | int | Integral):
        return (str(id_text(ids)),), True
    return tuple(str(id_text(id_)) for id_ in ids), False


def side_by_side(best: list[tuple[Ids, Scores]]) -> tuple[Ids, Scores]:
    """Return answers as the rows of a table, padded to the longest."""
    width = max((len(ids) for ids, _ in best), default=0)
    all_ids = np.full((len(best), width), "", dtype=np.object_)
    all_scores = np.full((len(best), width), -np.inf, dtype=np.float32)
    for row, (ids, scores) in enumerate(best):
        all_ids[row, : len(ids)] = ids
        all_scores[row, : len(scores)] = scores
    return all_ids, all_scores


def allowed_items(
    learned: NDArray[np.bool_],
    catalogue: Catalogue,
    *,
    candidates: Iterable[str | int] | None,
    block: Iterable[str | int] | None,
) -> NDArray[np.bool_]:
    """Return the items that may be recommended to any user, bool (n_items,).

    Args:
        learned: bool (n_items,).
        candidates: item ids to choose from. None means all.
        block: item ids that are never returned, even if they are among `candidates`.

    Raises:
        CatalogueMismatch: an unknown item.
    """
    allowed = learned.copy()
    if candidates is not None:
        chosen = np.zeros_like(allowed)
        chosen[catalogue.rows_of(candidates)] = True
        allowed &= chosen
    if block is not None:
        allowed[catalogue.rows_of(block)] = False
    return allowed


def without_excluded(
    rows_of_scores: Iterable[NDArray[np.float32]],
    allowed: NDArray[np.bool_],
    excluded: Sequence[NDArray[np.int64]],
) -> Iterator[NDArray[np.float32]]:
    """Yield each row of scores with -inf at items that are not allowed or excluded for that row.

    Args:
        rows_of_scores: float32 (n_items,) for each user. Changed in place.
        excluded: rows of the items in each user's history.
    """
    for scores, rows in zip(rows_of_scores, excluded, strict=True):
        scores[~allowed] = -np.inf
        scores[rows] = -np.inf
        yield scores
