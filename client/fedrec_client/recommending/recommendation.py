"""Recommendations made on the client itself: the user's vector never leaves the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrec.cli.flags import items_of_flag
from fedrec.config.schema import Settings
from fedrec.data import Catalogue
from fedrec.errors import DataError
from fedrec.ids import ItemId, RoundId
from fedrec.recommender import Recommender
from fedrec.recommender.ranking import Ids, Scores
from fedrec_client.recommending.own_recommender import model_file_of, own_recommender
from fedrec_client.state.held_model import Which, read_held_model

__all__ = ["Recommendation", "Recommendations", "Wanted", "recommend", "similar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One recommended item."""

    rank: int
    item_id: ItemId
    title: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendations:
    """What a user is recommended, and by the model of which round."""

    version: RoundId
    items: tuple[Recommendation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which items are wanted, and how many.

    Attributes:
        n: how many, at most.
        exclude_seen: leave out what a user has already.
        exclude: items that are never returned, or @FILE with one a line.
        candidates: items to choose from, in the same form; None means all.
    """

    n: int = 10
    exclude_seen: bool = True
    exclude: Sequence[str] | None = None
    candidates: Sequence[str] | None = None

    def filters(self, catalogue: Catalogue) -> tuple[list[str] | None, list[str]]:
        """Return the candidates and the excluded items, all of them in the catalogue.

        Raises:
            DataError: an unknown item, or a file that cannot be read.
        """
        chosen = None
        if self.candidates is not None:
            chosen = items_of_flag("--candidates", self.candidates, catalogue)
        return chosen, items_of_flag("--exclude", self.exclude or (), catalogue)


_USUAL = Wanted()


def recommend(
    settings: Settings, user_id: str, wanted: Wanted = _USUAL, *, which: Which = "best"
) -> Recommendations:
    """Return the best items for one of this client's users, best first.

    Works beside a running client and without the coordinator.

    Args:
        settings: the client's settings.
        user_id: the user, as the data file names it.
        wanted: which items, and how many.
        which: the model that measured best on validation, or the latest one.

    Raises:
        StorageError: the state folder holds no model.
        DataError: the user is not in the data, or an item not in the catalogue.
    """
    own = own_recommender(settings, which)
    if not own.knows(user_id):
        raise DataError(
            f"User {user_id!r} is not among the {len(own.user_ids)} users of {settings.data.path}.",
            remedy="Give an id as the data file writes it.",
        )
    candidates, block = wanted.filters(own.catalogue)
    found = own.recommend(
        user_id, wanted.n, exclude_seen=wanted.exclude_seen, block=block, candidates=candidates
    )
    return Recommendations(version=own.round, items=_ranked(own.catalogue, found))


def similar(
    settings: Settings, item_id: str, wanted: Wanted = _USUAL, *, which: Which = "best"
) -> Recommendations:
    """Return the items most like one, best first, from the shared model alone.

    Raises:
        StorageError: the state folder holds no model.
        DataError: an unknown item, or one that was never learned.
    """
    held = read_held_model(settings, which)
    shared = Recommender(model_file_of(held), held.catalogue)
    (item,) = items_of_flag("--similar", [item_id], held.catalogue)
    candidates, block = wanted.filters(held.catalogue)
    found = shared.similar_items(item, wanted.n, block=block, candidates=candidates)
    return Recommendations(version=shared.round, items=_ranked(held.catalogue, found))


def _ranked(catalogue: Catalogue, found: tuple[Ids, Scores]) -> tuple[Recommendation, ...]:
    """Return one answer of a `Recommender` with ranks and titles."""
    ids, scores = found
    return tuple(
        Recommendation(rank=rank, item_id=ItemId(item), title=catalogue.title_of(item), score=score)
        for rank, (item, score) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True), 1)
    )
