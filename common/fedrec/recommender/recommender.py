"""Recommend items with a trained model, using only numpy.

The algorithm declares which parts of its model are served (`Algorithm.serving`). There is always a
row for each item, `item_embedding`, which is compared with users' vectors, by an inner product
unless declared otherwise. A user's vector is its `user_embedding` or, if the algorithm keeps none,
the result of `Algorithm.fold_in` for the whole history. If an algorithm keeps users' scores
(`Algorithm.kept_scores`), answers come from those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue
from fedrec.errors import CatalogueMismatch, DataError, NoInformation, StorageError
from fedrec.formats import ENVIRONMENT_NAME, check_run_folder
from fedrec.ids import RoundId, id_text
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec.recommender.model_file import MODEL_NAME, USERS_NAME, ModelFile, UsersFile, check_model
from fedrec.recommender.ranking import (
    Ids,
    RankedItems,
    Scores,
    Vectors,
    allowed_items,
    asked_ids,
    best_items,
    side_by_side,
    without_excluded,
)
from fedrec.recommender.tail import LocalTail, TailFigures

CATALOGUE_NAME = "catalogue.csv"
_NOTHING = np.empty(0, dtype=np.int64)
_USERS_AT_ONCE = 256


def check_information(
    plan: Plan, serving: Mapping[str, NDArray[np.float32]], active: NDArray[np.int64]
) -> None:
    """Refuse what an algorithm without users' vectors serves if it is the same for all items.

    Raises:
        NoInformation: it is. The message names the settings to change.
    """
    rows = (values if len(active) == len(values) else values[active] for values in serving.values())
    if any((values[1:] != values[:-1]).any() for values in rows):
        return
    if plan.privacy.mechanism == "none":
        raise NoInformation(
            "The model gives all items the same score: the sums that it needs are not complete.",
            remedy="Wait until more rounds are published.",
        )
    raise NoInformation(
        "The model gives all items the same score: what users contributed does not rise above the "
        f"noise of privacy.epsilon = {plan.privacy.epsilon:g}.",
        remedy="Train with more users or a larger privacy.epsilon. `fedrec check` proposes "
        "settings for an epsilon.",
    )


class Recommender:
    """A trained model that recommends items.

    Every method that takes ids takes one or many. For one id the answers are one-dimensional, for a
    sequence of ids two-dimensional with a row for each. Items with too few holders were never
    learned and are never recommended.

    Args:
        model: the shared model.
        catalogue: the catalogue with which the model was trained.
        users: user vectors and histories, if they may be known.

    Attributes:
        tail: the items that only the users here score. See `with_tail`.

    Raises:
        CatalogueMismatch: the catalogue is another one.
        StorageError: the model does not match its algorithm, or the users' vectors do not match the
            model.
    """

    tail: TailFigures | None = None

    def __init__(
        self, model: ModelFile, catalogue: Catalogue, users: UsersFile | None = None
    ) -> None:
        if catalogue.fingerprint() != model.catalogue_fingerprint:
            raise CatalogueMismatch(
                "The catalogue is not the one that the model was trained with.",
                remedy=f"Use the {CATALOGUE_NAME} of the model's own run folder.",
            )
        self.catalogue = catalogue
        self._model = model
        self._users = users
        self._names: Ids = np.array(catalogue.item_ids, dtype=np.object_)
        self._algorithm = algorithm_of(model.plan, len(catalogue))
        self._active = np.ones(len(catalogue), dtype=np.bool_)
        if model.shared.holders is not None:
            self._active = model.shared.holders >= model.plan.federation.minimum_item_users
        self._local: LocalTail | None = None
        self._check_shapes()
        self._user_index: dict[str, int] = {user: index for index, user in enumerate(self.user_ids)}

    def _check_shapes(self) -> None:
        """Refuse a model and users that do not belong together."""
        n_items = len(self.catalogue)
        found = self._model.shared.tensors
        shapes = {
            entry.name: entry.whole_shape(n_items=n_items, n_users=0)
            for entry in self._algorithm.parameters
        }
        # Tensors that grow over the rounds have any length up to the number of trained items.
        trained = algorithm_of(self._model.plan, int(self._active.sum()))
        most = {entry.name: entry.grown_shape for entry in trained.parameters}
        fits = all(
            name in found
            and (
                found[name].shape == shapes[name] or shapes[name] < found[name].shape <= most[name]
            )
            for name in self._algorithm.recommending
        )
        if fits and self._users is not None:
            fits = self._fit(self._users)
        if not fits:
            raise StorageError(
                f"The model does not match {self._algorithm.name} with {len(self.catalogue)} "
                "items, or its users' vectors do not match it.",
                remedy="Use the files of a single run.",
            )

    def _fit(self, users: UsersFile) -> bool:
        """Return whether the data from which users are answered has this model's shape."""
        tensors, kept = users.private.tensors, self._algorithm.kept_scores
        if kept:
            wanted = (len(users.user_ids), len(self.catalogue))
            return kept in tensors and tensors[kept].shape == wanted
        if not self._algorithm.derived.keeps_vectors:
            return True
        vectors = tensors.get("user_embedding")
        return vectors is not None and vectors.shape[1:] == self._items.shape[1:]

    @cached_property
    def _serving(self) -> dict[str, NDArray[np.float32]]:
        """The tensors with which the algorithm scores, made on first use.

        Raises:
            NoInformation: they give all items the same score.
        """
        active = np.nonzero(self._active)[0]
        found = self._algorithm.serving(self._model.shared, active)
        if not (self._algorithm.kept_scores or self._keeps_vectors):
            check_information(self._model.plan, found, active)
        return found

    def check_information(self) -> None:
        """Refuse a model that gives all items the same score, if no user has a vector.

        Raises:
            NoInformation: it does.
        """
        if not (self._algorithm.kept_scores or self._keeps_vectors):
            _ = self._serving

    @cached_property
    def _keeps_vectors(self) -> bool:
        return self._algorithm.derived.keeps_vectors

    @cached_property
    def _learned(self) -> NDArray[np.float64]:
        """The rows of the items that can be recommended, (n_active, dim)."""
        return self._items[self._active].astype(np.float64)

    @property
    def _items(self) -> NDArray[np.float32]:
        return self._serving["item_embedding"]

    def __repr__(self) -> str:
        return (
            f"Recommender(round={self.round}, n_items={len(self.catalogue)}, "
            f"n_users={len(self._user_index)})"
        )

    @classmethod
    def load(cls, run_folder: str | Path) -> Recommender:
        """Read a run's model, with the users' vectors if the folder has them.

        Raises:
            DataError: the folder is missing or has no model.
            StorageError: a file is damaged.
            VersionMismatch: the folder or the model has a format that this version does not know.
                The machine on which it was trained does not matter.
        """
        folder = Path(run_folder)
        check_model(folder)
        # An exported model is in a folder that no run made.
        if (folder / ENVIRONMENT_NAME).exists():
            check_run_folder(folder)
        model = ModelFile.load(folder / MODEL_NAME)
        catalogue = Catalogue.load(folder / CATALOGUE_NAME)
        users_path = folder / USERS_NAME
        users = UsersFile.load(users_path) if users_path.exists() else None
        return cls(model, catalogue, users)

    def save(self, run_folder: str | Path) -> None:
        """Write the model, the catalogue and, readable by the owner only, the users' data.

        Raises:
            StorageError: a file cannot be written.
        """
        folder = Path(run_folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be made: {error}.", remedy="Name a writable folder."
            ) from error
        self.catalogue.save(folder / CATALOGUE_NAME)
        if self._users is not None:
            self._users.save(folder / USERS_NAME)
        self._model.save(folder / MODEL_NAME)

    def with_tail(self, least: int, figures: TailFigures) -> Recommender:
        """Return a recommender that also scores the items that the model never learned.

        The scores follow from the histories of the users here. `save` writes none of them.

        Args:
            least: users here that must hold an item, `client.tail_minimum_users`.
            figures: their weight, and its worth on validation.

        Raises:
            DataError: there are no histories here.
            SettingsError: there are too many users.
        """
        known = self._known_users()
        found = Recommender(self._model, self.catalogue, known)
        found.tail = figures
        if figures.weight:
            found._local = LocalTail(known.seen_indptr, known.seen_items, self._active, least)
        return found

    @property
    def travelling(self) -> NDArray[np.bool_]:
        """Whether the model learned an item, bool (n_items,)."""
        return self._active

    def scores(self) -> Iterator[NDArray[np.float32]]:
        """Yield each known user's scores by the model alone, -inf for items never learned."""
        known = self._known_users()
        for begin in range(0, len(known.user_ids), _USERS_AT_ONCE):
            rows = np.arange(begin, min(len(known.user_ids), begin + _USERS_AT_ONCE))
            scores = self._shared_scores(known, rows)
            yield from without_excluded(scores, self._active, [_NOTHING] * len(rows))

    @cached_property
    def _directions(self) -> NDArray[np.float32]:
        """The items' rows scaled to length 1, computed on the first search for similar items."""
        lengths = np.linalg.norm(self._items, axis=1, keepdims=True)
        return np.asarray(self._items / np.maximum(lengths, np.finfo(np.float32).tiny))

    @property
    def round(self) -> RoundId:
        """The version of the model."""
        return self._model.round

    @property
    def user_ids(self) -> tuple[str, ...]:
        """The users whose vectors are available here."""
        return () if self._users is None else self._users.user_ids

    def knows(self, user: str | int) -> bool:
        """Return whether a user is among `user_ids`."""
        return id_text(user) in self._user_index

    def learned(self, item: str | int) -> bool:
        """Return whether an item is in the catalogue and can be recommended."""
        return item in self.catalogue and bool(self._active[self.catalogue.rows_of([item])[0]])

    def history_of(self, user: str | int) -> list[str]:
        """Return the items of a user's history, in the order of the catalogue.

        Raises:
            DataError: an unknown user, or a folder without user vectors.
        """
        known = self._known_users()
        (row,) = self._rows_of(asked_ids(user)[0])
        return list(self.catalogue.ids_of(known.seen_of(int(row))))

    def recommend(
        self,
        users: str | int | Sequence[str | int],
        n: int = 10,
        *,
        exclude_seen: bool = True,
        candidates: Iterable[str | int] | None = None,
        block: Iterable[str | int] | None = None,
    ) -> RankedItems:
        """Return the n best items for one user or many.

        Args:
            users: one user id, or a sequence of them.
            n: number of items. Fewer are returned if a user has fewer to choose from.
            exclude_seen: leave out the items of the user's history, including held-out ones.
            candidates: item ids to choose from. None means all.
            block: item ids that are never returned, even if they are among `candidates`.

        Raises:
            DataError: an unknown user, or a folder without user vectors.
            CatalogueMismatch: an unknown item.
        """
        known = self._known_users()
        asked, one = asked_ids(users)
        rows = self._rows_of(asked)
        seen = [known.seen_of(row) if exclude_seen else _NOTHING for row in rows.tolist()]
        scores = self._shared_scores(known, rows)
        if (tail := self._local) is not None:
            scores = self._with_local(scores, (tail.own(row) for row in rows.tolist()))
        best = self._best(scores, n, self._allowed(candidates, block, local=True), seen)
        return self._ranked(best, asked, one=one)

    def recommend_vector(
        self,
        vector: NDArray[np.floating],
        n: int = 10,
        *,
        exclude: Iterable[str | int] = (),
        candidates: Iterable[str | int] | None = None,
        block: Iterable[str | int] | None = None,
        history: Iterable[str | int] = (),
    ) -> RankedItems:
        """Return the n best items for a user vector, such as the result of `fold_in`.

        Args:
            vector: float (dim,).
            exclude: item ids that are left out, such as this user's history.
            history: item ids of this user's history, for items that the model never learned. Only
                `with_tail` scores them.

        Raises:
            DataError: the vector has the wrong shape or is not finite.
            CatalogueMismatch: an unknown item.
        """
        wanted = np.asarray(vector, dtype=np.float32)
        # Without vectors of users, a history is the vector: 1 or 0 for each learned item.
        dim = self._items.shape[1] if self._keeps_vectors else int(self._active.sum())
        expected = (dim,)
        if wanted.shape != expected or not np.isfinite(wanted).all():
            raise DataError(
                f"The user vector has shape {wanted.shape}, expected {expected} and finite values.",
                remedy="Compute it with fold_in of the same model.",
            )
        seen = self.catalogue.rows_of(exclude)
        scores = self._scores_of(wanted[None])
        had = np.unique(self.catalogue.rows_of(history))
        if (tail := self._local) is not None and len(had):
            scores = self._with_local(scores, (tail.of(had),))
        allowed = self._allowed(candidates, block, local=len(had) > 0)
        best = self._best(scores, n, allowed, [seen])
        return self._ranked(best, (), one=True)

    def similar_items(
        self,
        items: str | int | Sequence[str | int],
        n: int = 10,
        *,
        candidates: Iterable[str | int] | None = None,
        block: Iterable[str | int] | None = None,
    ) -> RankedItems:
        """Return the n items whose rows have the largest cosine with those of the given items.

        An item is not among its own neighbours.

        Args:
            items: one item id, or a sequence of them.
            n: number of items. Fewer are returned if there are fewer to choose from.
            candidates: item ids to choose from. None means all.
            block: item ids that are never returned, even if they are among `candidates`.

        Raises:
            CatalogueMismatch: an unknown item.
            DataError: an item that was never learned.
        """
        asked, one = asked_ids(items)
        rows = self.catalogue.rows_of(asked)
        unlearned = rows[~self._active[rows]]
        if len(unlearned):
            raise DataError(
                f"Item {self.catalogue.item_ids[unlearned[0]]!r} was never learned: fewer than "
                f"{self._model.plan.federation.minimum_item_users} users hold it.",
                remedy="Ask for items that more users hold.",
            )
        unit = self._directions
        itself = [rows[place : place + 1] for place in range(len(rows))]
        allowed = self._allowed(candidates, block)
        best = self._best((unit @ row for row in unit[rows]), n, allowed, itself)
        return self._ranked(best, asked, one=one)

    def fold_in(self, history: Iterable[str | int]) -> NDArray[np.float32]:
        """Return the vector of a new user from the items of its history, float32 (dim,).

        Nothing is stored. The algorithm's own `fold_in` describes the rule.

        Raises:
            CatalogueMismatch: an unknown item.
            DataError: none of the items was ever learned.
        """
        rows = np.unique(self.catalogue.rows_of(history))
        if not self._active[rows].any():
            raise DataError(
                f"None of the {len(rows)} items of the history was learned by the model.",
                remedy="Pass items that more users hold.",
            )
        return self._folded(rows)

    def _folded(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vector of a history, given as distinct catalogue rows."""
        positives = np.nonzero(np.isin(np.nonzero(self._active)[0], rows))[0]
        return self._algorithm.fold_in(self._learned, positives)

    def _shared_scores(
        self, known: UsersFile, rows: NDArray[np.int64]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all items for some users by the model alone."""
        kept = self._algorithm.kept_scores
        if kept:
            return (row.copy() for row in known.private.tensors[kept][rows])
        return self._own_scores_of(known, rows)

    def _with_local(
        self,
        rows_of_scores: Iterable[NDArray[np.float32]],
        rows_of_local: Iterable[NDArray[np.float64]],
    ) -> Iterator[NDArray[np.float32]]:
        assert self._local is not None and self.tail is not None
        for scores, local in zip(rows_of_scores, rows_of_local, strict=True):
            self._local.add(scores, local, self.tail.weight)
            yield scores

    def _own_scores_of(
        self, known: UsersFile, rows: NDArray[np.int64]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all items for some users, one user at a time."""
        if not self._keeps_vectors:
            vectors = (self._folded(known.seen_of(row)) for row in rows.tolist())
            yield from self._scores_of(vectors)
            return
        for row in rows.tolist():
            own = {name: values[row] for name, values in known.private.tensors.items()}
            yield self._algorithm.preferences(self._serving, own)

    def vectors(self) -> Vectors:
        """Return the vectors of users and items with their ids.

        Raises:
            DataError: the algorithm scores without vectors of users, or no users are known here.
        """
        known = self._known_users()
        if self._algorithm.kept_scores:
            raise DataError(
                f"{self._algorithm.name} keeps scores of its users, not vectors.",
                remedy="Use scores().",
            )
        if self._keeps_vectors:
            users = np.asarray(known.private.tensors["user_embedding"][:])
        else:
            users = np.stack([*map(self._folded, map(known.seen_of, range(len(self.user_ids))))])
        return Vectors(
            user_ids=np.array(known.user_ids, dtype=np.object_),
            users=users,
            item_ids=self._names[self._active],
            items=self._items[self._active],
        )

    def _ranked(
        self, best: list[tuple[Ids, Scores]], asked: tuple[str, ...], *, one: bool
    ) -> RankedItems:
        ids, scores = best[0] if one else side_by_side(best)
        return RankedItems(asked=asked, ids=ids, scores=scores, catalogue=self.catalogue)

    def _known_users(self) -> UsersFile:
        if self._users is None:
            raise DataError(
                "There are no user vectors here: they stay with the clients.",
                remedy="Ask on the user's own client, or use fold_in and recommend_vector.",
            )
        return self._users

    def _rows_of(self, users: Sequence[str]) -> NDArray[np.int64]:
        unknown = [user for user in users if user not in self._user_index]
        if unknown:
            more = f" and {len(unknown) - 1} more are" if len(unknown) > 1 else " is"
            raise DataError(
                f"User {unknown[0]!r}{more} not among the {len(self._user_index)} users of this "
                "model.",
                remedy="Use fold_in with their history, then recommend_vector.",
            )
        return np.array([self._user_index[user] for user in users], dtype=np.int64)

    def _allowed(
        self,
        candidates: Iterable[str | int] | None,
        block: Iterable[str | int] | None,
        *,
        local: bool = False,
    ) -> NDArray[np.bool_]:
        scored = self._active
        if local and self._local is not None:
            scored = scored.copy()
            scored[self._local.rows] = True
        return allowed_items(scored, self.catalogue, candidates=candidates, block=block)

    def _scores_of(self, vectors: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all items for every user vector."""
        # One by one, because the bits must not depend on other users in the request.
        for vector in vectors:
            yield self._algorithm.preferences(self._serving, {"user_embedding": vector})

    def _best(
        self,
        rows_of_scores: Iterable[NDArray[np.float32]],
        n: int,
        allowed: NDArray[np.bool_],
        excluded: Sequence[NDArray[np.int64]],
    ) -> list[tuple[Ids, Scores]]:
        """Return the best items of every row of scores as ids, with their scores."""
        if not isinstance(n, Integral) or n < 1:
            raise DataError(f"n is {n!r}.", remedy="Pass an integer of 1 or more.")
        answers = []
        for scores in without_excluded(rows_of_scores, allowed, excluded):
            best = best_items(scores, n)
            answers.append((self._names[best], scores[best]))
        return answers
