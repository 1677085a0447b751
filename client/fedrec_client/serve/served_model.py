"""Answer questions from one version of the model, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedrec.errors import DataError, SettingsError
from fedrec.recommender import Recommender
from fedrec.recommender.ranking import RankedItems
from fedrec_client.own_recommender import Wanted
from fedrec_client.serve.request_reading import Recommend, RecommendBatch, Refusal, Similar

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SHOWN = 5
"""The largest number of unknown items that a refusal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A version of the model, with the fixed parts of its answers.

    A request's handler uses only one of these, so that an answer comes from a single version.

    Attributes:
        run: the run that the model belongs to.
        named: the results of `_named` so far.
    """

    recommender: Recommender
    run: str
    named: dict[str, str] = field(default_factory=dict)

    def recommend(self, question: Recommend) -> bytes:
        """Return the answer to a question, as JSON.

        Raises:
            Refusal: the user or item is unknown, or the history has no learned item.
            StorageError: the user's stored data can no longer be read.
        """
        own, unknown = self.recommender, _Unknown(ignored=question.ignore_unknown)
        wanted = self._wanted(question, unknown)
        if question.user and not own.knows(question.user):
            raise _unknown_user("")
        if question.user and not question.recent:
            return self._answer(wanted.for_users(own, question.user), unknown, basis="user")
        had = own.history_of(question.user) if question.user else []
        had += self._known(question.recent or question.history, unknown)
        if not any(map(own.learned, had)):
            raise Refusal(
                "never_learned",
                "The model has learned no item of the history.",
                "Pass items that more users hold.",
            )
        try:
            found = wanted.for_history(own, had)
        except SettingsError as error:
            raise Refusal("no_fold_in", error.message, "Ask for a known user.") from None
        return self._answer(found, unknown, basis="history")

    def batch(self, question: RecommendBatch) -> bytes:
        """Return several users' recommendations, as JSON.

        Raises:
            Refusal: a user or an item is unknown.
            StorageError: the users' stored data can no longer be read.
        """
        own, unknown = self.recommender, _Unknown(ignored=question.ignore_unknown)
        wanted = self._wanted(question, unknown)
        for place, user in enumerate(question.users, 1):
            if not own.knows(user):
                raise _unknown_user(f" It is number {place} of {len(question.users)}.")
        lists = (
            f'{{"user":{_ENCODE(user)},"items":[{self._items(wanted.for_users(own, user))}]}}'
            for user in question.users
        )
        return f'{self._head(unknown)}"users":[{",".join(lists)}]}}'.encode()

    def similar(self, question: Similar) -> bytes:
        """Return the items most similar to one, as JSON.

        Raises:
            Refusal: the item is unknown or was never learned.
        """
        own, unknown = self.recommender, _Unknown(ignored=question.ignore_unknown)
        wanted = self._wanted(question, unknown)
        if question.item not in own.catalogue:
            raise _unknown_item([question.item])
        try:
            found = wanted.like_item(own, question.item)
        except DataError as error:
            raise Refusal("never_learned", error.message, error.remedy) from None
        return self._answer(found, unknown, basis="item")

    def _wanted(self, question: Recommend | RecommendBatch | Similar, unknown: _Unknown) -> Wanted:
        candidates = None
        if question.candidates is not None:
            candidates = self._known(question.candidates, unknown)
        return Wanted(
            n=question.n,
            exclude_seen=isinstance(question, Similar) or question.exclude_seen,
            exclude=self._known(question.exclude, unknown),
            candidates=candidates,
        )

    def _known(self, items: Sequence[str], unknown: _Unknown) -> list[str]:
        catalogue = self.recommender.catalogue
        missing = [item for item in items if item not in catalogue]
        if not missing:
            return list(items)
        if not unknown.ignored:
            raise _unknown_item(missing)
        unknown.items += missing
        return [item for item in items if item in catalogue]

    def _answer(self, found: RankedItems, unknown: _Unknown, *, basis: str) -> bytes:
        return f'{self._head(unknown)}"basis":"{basis}","items":[{self._items(found)}]}}'.encode()

    def _head(self, unknown: _Unknown) -> str:
        """Return the beginning of an answer: the version, the run and what was ignored."""
        head = f'{{"version":{int(self.recommender.round)},"run":{_ENCODE(self.run)},'
        if unknown.ignored:
            head += f'"ignored":{_ENCODE(list(dict.fromkeys(unknown.items)))},'
        return head

    def _items(self, found: RankedItems) -> str:
        ids, scores = found[0].tolist(), found[1].tolist()
        if not math.isfinite(sum(scores)):
            raise Refusal("internal", "The model has values that are not finite numbers.")
        # A float32 is a JSON number without loss, so a reader gets the same bits.
        return ",".join(
            f'{{"rank":{rank},{self._named(item)},"score":{score!r}}}'
            for rank, (item, score) in enumerate(zip(ids, scores, strict=True), 1)
        )

    def _named(self, item: str) -> str:
        """Return an item's id and title as JSON, computed once to save most of the time."""
        known = self.named.get(item)
        if known is None:
            title = self.recommender.catalogue.title_of(item)
            known = self.named[item] = f'"item_id":{_ENCODE(item)},"title":{_ENCODE(title)}'
        return known


class _Unknown:
    """Items in a request that are not in the catalogue."""

    def __init__(self, *, ignored: bool) -> None:
        self.ignored = ignored
        self.items: list[str] = []


def _unknown_user(which: str) -> Refusal:
    return Refusal(
        "unknown_user",
        f"The model's data has no such user of this client.{which}",
        "Pass an id as in the data file, or a history for a new user.",
    )


def _unknown_item(missing: Sequence[str]) -> Refusal:
    shown = ", ".join(repr(item[:80]) for item in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return Refusal(
        "unknown_item",
        f"The model's catalogue does not have {shown}{more}.",
        "Pass items as in the catalogue, or set ignore_unknown = true to skip others.",
    )
