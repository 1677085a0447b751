"""One version of the model, ready to answer, and its answers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedrec.errors import DataError, SettingsError
from fedrec.recommender import Recommender
from fedrec.recommender.ranking import Ids, Scores
from fedrec_client.serve.request_reading import Recommend, Refusal, Similar

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A version, with what its answers say besides items.

    A request's handler takes one of these and nothing else, so that an answer is wholly
    of one version.

    Attributes:
        run: the run that the model belongs to.
        named: what `_named` made so far.
    """

    recommender: Recommender
    run: str
    named: dict[str, str] = field(default_factory=dict)

    def recommend(self, question: Recommend) -> bytes:
        """Return the answer to a question, as JSON.

        Raises:
            Refusal: an unknown user or item, or a history of which nothing follows.
            StorageError: what is stored of the user cannot be read any more.
        """
        own, unknown = self.recommender, _Unknown(ignored=question.ignore_unknown)
        candidates, block = self._filters(question, unknown)
        if question.user and not own.knows(question.user):
            raise Refusal(
                "unknown_user",
                "This client has no such user in the model's data.",
                "Give an id as the data file writes it, or history for somebody new.",
            )
        if question.user and not question.recent:
            found = own.recommend(
                question.user,
                question.n,
                exclude_seen=question.exclude_seen,
                candidates=candidates,
                block=block,
            )
            return self._answer(found, unknown, basis="user")
        had = own.history_of(question.user) if question.user else []
        had += self._known(question.recent or question.history, unknown)
        if not any(map(own.learned, had)):
            raise Refusal(
                "never_learned",
                "The model has learned no item of the history.",
                "Give items that more users hold.",
            )
        try:
            found = own.recommend_vector(
                own.fold_in(had),
                question.n,
                exclude=had if question.exclude_seen else (),
                candidates=candidates,
                block=block,
            )
        except SettingsError as error:
            raise Refusal("no_fold_in", error.message, "Ask for a known user.") from None
        return self._answer(found, unknown, basis="history")

    def similar(self, question: Similar) -> bytes:
        """Return the items most like one, as JSON.

        Raises:
            Refusal: an unknown item, or one that was never learned.
        """
        own, unknown = self.recommender, _Unknown(ignored=question.ignore_unknown)
        candidates, block = self._filters(question, unknown)
        if question.item not in own.catalogue:
            raise _unknown_item([question.item])
        try:
            found = own.similar_items(question.item, question.n, candidates=candidates, block=block)
        except DataError as error:
            raise Refusal("never_learned", error.message, error.remedy) from None
        return self._answer(found, unknown, basis="item")

    def _filters(
        self, question: Recommend | Similar, unknown: _Unknown
    ) -> tuple[list[str] | None, list[str] | None]:
        """Return the candidates and what is never returned, None where nothing is said."""
        candidates = None
        if question.candidates is not None:
            candidates = self._known(question.candidates, unknown)
        return candidates, self._known(question.exclude, unknown) or None

    def _known(self, items: Sequence[str], unknown: _Unknown) -> list[str]:
        catalogue = self.recommender.catalogue
        missing = [item for item in items if item not in catalogue]
        if not missing:
            return list(items)
        if not unknown.ignored:
            raise _unknown_item(missing)
        unknown.items += missing
        return [item for item in items if item in catalogue]

    def _answer(self, found: tuple[Ids, Scores], unknown: _Unknown, *, basis: str) -> bytes:
        ids, scores = found[0].tolist(), found[1].tolist()
        if not math.isfinite(sum(scores)):
            raise Refusal("internal", "The model has values that are no finite numbers.")
        # A float32 is a number of JSON without loss: who reads it gets the same bits back.
        items = ",".join(
            f'{{"rank":{rank},{self._named(item)},"score":{score!r}}}'
            for rank, (item, score) in enumerate(zip(ids, scores, strict=True), 1)
        )
        answer: dict[str, object] = {
            "version": int(self.recommender.round),
            "run": self.run,
            "basis": basis,
        }
        if unknown.ignored:
            answer["ignored"] = list(dict.fromkeys(unknown.items))
        return f'{_ENCODE(answer)[:-1]},"items":[{items}]}}'.encode()

    def _named(self, item: str) -> str:
        """Return an item's id and title as JSON, made once: most of an answer's time is here."""
        known = self.named.get(item)
        if known is None:
            title = self.recommender.catalogue.title_of(item)
            known = self.named[item] = f'"item_id":{_ENCODE(item)},"title":{_ENCODE(title)}'
        return known


class _Unknown:
    """Items of a question that the catalogue has not."""

    def __init__(self, *, ignored: bool) -> None:
        self.ignored = ignored
        self.items: list[str] = []


def _unknown_item(missing: Sequence[str]) -> Refusal:
    shown = ", ".join(repr(item[:80]) for item in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return Refusal(
        "unknown_item",
        f"The model's catalogue has no {shown}{more}.",
        "Give items as the catalogue names them, or ignore_unknown = true to leave others out.",
    )
