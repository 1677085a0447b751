"""Guess what the columns of a table contain, from their values and their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from fedrec.data.times import is_date_form, looks_like_moments

ENOUGH = 20
"""The smallest number of rows in which repetition means something."""
_TELLING: dict[str, tuple[str, ...]] = {
    "user": (
        "user", "customer", "client", "member", "person", "buyer", "account", "reviewer",
        "visitor", "viewer", "reader", "listener", "player", "subscriber", "profile", "guest",
        "patient", "student", "learner", "candidate", "consumer", "shopper", "cust", "kunde",
        "nutzer", "utilisateur", "usuario", "cliente",
    ),
    "session": ("session",),
    "item": (
        "item", "product", "article", "movie", "film", "book", "track", "song", "artist", "album",
        "game", "app", "anime", "manga", "video", "show", "business", "venue", "place", "poi",
        "location", "restaurant", "hotel", "recipe", "beer", "joke", "course", "news", "isbn",
        "asin", "sku", "stock", "listing", "podcast", "aid", "job", "ad", "artikel",
        "produkt", "produit", "producto",
    ),
    "rating": ("rating", "score", "star", "overall", "grade", "bewertung"),
    "timestamp": (
        "time", "date", "datetime", "timestamp", "when", "ts", "at", "dat", "datum", "fecha",
    ),
    "other": (
        "review", "invoice", "order", "transaction", "event", "basket", "cart", "row", "line",
        "record", "log", "index", "unnamed", "price", "amount", "cost", "quantity", "qty",
        "count", "total", "age", "gender", "sex", "country", "city", "state", "zip", "region",
        "language", "brand", "category", "genre", "type", "class", "department", "tag", "status",
        "action", "behavior", "behaviour", "device", "platform", "channel", "latitude", "lat",
        "longitude", "lon", "lng", "text", "summary", "comment", "description", "headline", "body",
        "vote", "helpful", "verified", "hour", "day", "dow", "weekday", "month", "year", "offset",
        "duration", "play", "weight", "position", "rank", "view", "click", "point", "feedback",
    ),
}  # fmt: skip
"""Words in a column's name that tell its role. Names of reviews, orders and the like are ``other``.
"""
_ENDINGS = (
    "id", "ids", "no", "nr", "num", "number", "code", "key", "name", "title", "hash", "idx", "ref",
    "uuid", "guid", "mbid",
)  # fmt: skip
_ENDING = re.compile(rf"(?<=[^\W\d_]{{3}})({'|'.join(_ENDINGS)})$")
_ID_NAME = re.compile(r"(id|ids|no|nr|code|key|hash|uuid|guid|isbn|asin|sku)$", re.IGNORECASE)
_CODE = re.compile(r"(?=\S*\d)(?=\S*[^\W\d_])\S+")
_REVIEWER = re.compile(r"A[0-9A-Z]{9,20}")
_ASIN = re.compile(r"[0-9A-Z]{10}")


class ColumnKind(Enum):
    """Kinds of columns, as phrases for errors."""

    EMPTY = "is mostly empty"
    CONSTANT = "is the same in every row"
    DATES = "has dates"
    MOMENTS = "has times"
    SCALE = "has few small numbers"
    MEASURES = "has measurements"
    PROSE = "has text or lists"
    FEW = "has few different values"
    WORDS = "has values that repeat"
    CODES = "has codes that repeat"


@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """One column of a file's first rows.

    Attributes:
        place: its position in a row, from 0.
        name: empty in a file without a header.
        values: one for each row, or empty if it is missing.
    """

    place: int
    name: str
    values: Sequence[str]

    @cached_property
    def kind(self) -> ColumnKind:
        """The kind of its values. Whether they repeat plays no part."""
        found = [value for value in self.values if value]
        distinct = set(found)
        if 2 * len(found) <= len(self.values):
            return ColumnKind.EMPTY
        if is_date_form(found):
            return ColumnKind.DATES
        if len(distinct) == 1 < len(found):
            return ColumnKind.CONSTANT
        numbers = list(map(number_of, distinct))
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            if looks_like_moments(known):
                return ColumnKind.MOMENTS
            if all(-1 <= number <= 10 and (2 * number).is_integer() for number in known):
                return ColumnKind.SCALE
            if any(number < 0 or not number.is_integer() for number in known):
                return ColumnKind.MEASURES
        if sum(_is_prose(value) for value in distinct) * 2 > len(distinct):
            return ColumnKind.PROSE
        if not known and all(map(_CODE.fullmatch, distinct)):
            return ColumnKind.CODES
        is_few = len(found) >= ENOUGH and len(distinct) <= 10 and 5 * len(distinct) <= len(found)
        return ColumnKind.FEW if is_few and not known else ColumnKind.WORDS

    @cached_property
    def is_unique(self) -> bool:
        """Whether it differs in every row, unlike users and items. False for very few rows."""
        found = [value for value in self.values if value]
        if self.is_row_number and found[0] in ("0", "1"):
            return True
        return len(found) >= ENOUGH and len(set(found)) == len(found)

    @cached_property
    def is_decimal(self) -> bool:
        """Whether its values have a decimal point, which ids without a name do not have."""
        return any("." in value and number_of(value) is not None for value in self.values)

    @cached_property
    def is_row_number(self) -> bool:
        """Whether each value is the previous one plus 1."""
        numbers = [number_of(value) for value in self.values]
        first = numbers[0] if numbers else None
        return (
            first is not None
            and len(numbers) > 2
            and all(number == first + row for row, number in enumerate(numbers))
        )

    @cached_property
    def role(self) -> str | None:
        """The role that its name suggests or, without a name, the form of its values."""
        if self.name:
            return role_of_name(self.name)
        found = {value for value in self.values if value}
        if found and all(map(_REVIEWER.fullmatch, found)):
            return "user"
        if all(map(_ASIN.fullmatch, found)) and any(value.startswith("B0") for value in found):
            return "item"
        return None

    @property
    def is_named_as_id(self) -> bool:
        """Whether its name ends like that of an id."""
        return is_named_as_id(self.name)

    @property
    def in_words(self) -> str:
        """The column and the kind of its values, as text for an error."""
        shown = self.name or f"column {self.place + 1}"
        if self.kind not in (ColumnKind.DATES, ColumnKind.MOMENTS):
            if self.is_unique:
                return f"{shown} differs in every row"
            if self.role == "other":
                return f"{shown} has a name for something else"
        return f"{shown} {self.kind.value}"

    def determines(self, other: Column) -> bool:
        """Return whether equal values of this column always come with equal values of another one.

        Without repeated values this is false.
        """
        seen: dict[str, str] = {}
        n_rows = 0
        for mine, theirs in zip(self.values, other.values, strict=True):
            if mine and theirs:
                n_rows += 1
                if seen.setdefault(mine, theirs) != theirs:
                    return False
        return n_rows - len(seen) >= 3 and len(set(seen.values())) > 1


def is_named_as_id(name: str) -> bool:
    """Return whether a name ends like that of an id."""
    return bool(_ID_NAME.search(name))


def role_of_name(name: str) -> str | None:
    """Return the role that a column's name suggests, or None if it suggests none.

    The last word decides: a book's rating is a rating, and a user's session is a session. An
    attribute of a user or an item is ``other``.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold()
    words = [word for word in re.split(r"[\W_\d]+", spaced) if word]
    while len(words) > 1 and (len(words[-1]) == 1 or words[-1] in _ENDINGS):
        del words[-1]
    roles = list(map(_role_of_word, words))
    return roles[-1] or ("other" if any(roles) else None) if roles else None


def _role_of_word(word: str) -> str | None:
    matching = [
        (len(known), role)
        for text in {word, _ENDING.sub("", word)}
        for role, all_known in _TELLING.items()
        for known in all_known
        if text.removesuffix("s") == known.removesuffix("s")
        or (len(known) > 3 and text.removesuffix("s").endswith(known))
    ]
    return max(matching)[1] if matching else None


def number_of(text: str) -> float | None:
    """Return a field as a number, or None if it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


def _is_prose(text: str) -> bool:
    words = text.split()
    is_list = len(words) > 1 and all(map(_CODE.fullmatch, words))
    return is_list or len(words) > 6 or text.startswith(("[", "{"))
