"""The section `data` of a settings file: the options for reading a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from pydantic import Field

from fedrec.errors import DataError
from fedrec.section import Section

ROLES = ("user", "item", "rating", "timestamp")
"""Roles of columns. ``-`` is any other column."""

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user": ("user_id", "userid", "user", "uid", "reviewerid", "customer_id"),
    "item": ("item_id", "itemid", "item", "iid", "movieid", "movie_id", "asin", "product_id"),
    "rating": ("rating", "ratings", "score", "overall", "stars"),
    "timestamp": (
        "timestamp", "time", "unix_timestamp", "ts", "unixreviewtime", "date", "datetime",
    ),
}  # fmt: skip
"""Usual names of columns, without regard to case, blanks, hyphens and underscores."""

SEPARATORS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
"""Words for separators. Any other character is written as itself."""


UNQUOTED = ("\t", "|", "::", " ")
"""Separators between which a quotation mark is text, unless `Reading.quotes` is set."""
_WORDS = {text: word for word, text in SEPARATORS.items()}
_NOTHING = frozenset(
    {"", "nan", "NaN", "NA", "N/A", "<NA>", "NULL", "null", "None", "\\N"}
)  # fmt: skip
"""Texts that exports write for a missing value."""


FLAG_AND_SETTING = re.compile(r"--([a-z-]+) \(data\.([a-z_]+)\)")
"""The form of `flag_of` in a text."""


def separator_word(separator: str) -> str:
    """Return the word for a separator, or the separator itself."""
    return _WORDS.get(separator, separator)


def is_nothing(text: str) -> bool:
    """Return whether a field is empty or holds a string that means a missing value."""
    return text.strip() in _NOTHING


def usual_columns(role: str, names: Iterable[str]) -> list[str]:
    """Return the columns that are usually named so for a role, each once."""
    return list(dict.fromkeys(name for name in names if _folded(name) in USUAL_NAMES[role]))


def known_roles(header: Sequence[str]) -> set[str]:
    """Return the roles for which a header has a usual name."""
    return {role for role in USUAL_NAMES if usual_columns(role, header)}


def _folded(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def flag_of(name: str) -> str:
    """Return a flag together with the setting of the same meaning."""
    return f"--{name.replace('_', '-')} (data.{name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The options for reading one file, as the settings of the same names explain them.

    Raises:
        DataError: a value is invalid.
    """

    layout: str | None = None
    columns: str | None = None
    separator: str | None = None
    encoding: str | None = None
    quotes: str | None = None
    user_column: str | None = None
    item_column: str | None = None
    rating_column: str | None = None
    timestamp_column: str | None = None
    timestamp_format: str = "auto"
    minimum_rating: float | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        """Check all that can be checked without the file."""
        _ = self.roles, self.separating
        if self.quotes not in (None, "none", "fields", "lines"):
            raise DataError(
                f"quotes is {self.quotes!r}.",
                remedy=f"Set {flag_of('quotes')} to none, fields or lines.",
                options={"quotes": None},
            )
        how = self.timestamp_format
        if how not in ("auto", "number", "iso", "none") and "%" not in how:
            raise DataError(
                f"timestamp_format is {how!r}.",
                remedy=f"Set {flag_of('timestamp_format')} to auto, number, iso, none, or a format "
                "such as %d.%m.%Y.",
                options={"timestamp_format": "auto"},
            )

    @property
    def roles(self) -> tuple[str, ...] | None:
        """The roles of the columns of a file without a header, or None."""
        if self.columns is None:
            return None
        roles = tuple(word.strip() for word in self.columns.split(","))
        unknown = [role for role in roles if role not in (*ROLES, "-")]
        twice = [role for role in ROLES if roles.count(role) > 1]
        if unknown or twice or "user" not in roles or "item" not in roles:
            listed = ", ".join(map(repr, unknown or twice))
            wrong = "lacks the user or the item"
            if unknown:
                wrong = f"{listed} is not one of {', '.join(ROLES)} and -"
            elif twice:
                wrong = f"{listed} appears twice"
            raise DataError(
                f"columns is {self.columns!r}: {wrong}.",
                remedy=f"Name each column of the file in {flag_of('columns')}, in order: user, "
                "item, rating and timestamp if it has them, and - for any other.",
                options={"columns": None},
            )
        return roles

    @property
    def separating(self) -> str | None:
        """The text between two fields, or None if it is to be detected."""
        if self.separator is None:
            return None
        found = SEPARATORS.get(self.separator, self.separator)
        if found != "::" and (len(found) != 1 or found in '"\r\n' or found.isalnum()):
            raise DataError(
                f"separator is {self.separator!r}.",
                remedy=f"Set {flag_of('separator')} to one of {', '.join(SEPARATORS)}, to ::, or "
                "to another single character.",
                options={"separator": None},
            )
        return found

    def quotes_between(self, separator: str) -> str:
        """Return how quotation marks between these separators are read: none, fields or lines."""
        if self.quotes is None:
            return "none" if separator in UNQUOTED else "fields"
        return self.quotes

    def refuse_beyond(self, layout: str, *allowed: str) -> None:
        """Refuse options that a layout would ignore.

        Raises:
            DataError: an option for splitting or naming columns is not in `allowed`.
        """
        about = (
            "columns",
            "separator",
            "encoding",
            "quotes",
            *(f"{role}_column" for role in ROLES),
        )
        beyond = [name for name in about if getattr(self, name) and name not in allowed]
        if beyond:
            raise DataError(
                f"{flag_of('layout')} {layout} doesn't support "
                f"{', '.join(map(flag_of, beyond))}: its columns have fixed positions or no names.",
                remedy=f"Omit these options, or use {flag_of('layout')} csv (with a header) "
                f"or table (without).",
                options=dict.fromkeys(beyond),
            )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all options."""
        return tuple(field.name for field in fields(cls))


class DataSettings(Section):
    """This machine's interactions: their file, how to read it, and which of them count."""

    path: str | None = Field(
        default=None,
        description="File with the interactions, or the name of a public data set in the cache: "
        "ml-100k, ml-1m, filmtrust, amazon-video.",
    )
    layout: str | None = Field(
        default=None,
        description="File layout: csv (with a header), table (without), jsonl, parquet, u.data, "
        "ratings.dat, ratings.csv, ratings.txt, inter or amazon. Detected if omitted.",
    )
    catalogue: str | None = Field(
        default=None, description="The federation's public catalogue of items."
    )
    columns: str | None = Field(
        default=None,
        description="Columns of a file without a header, in order, such as "
        "user,item,rating,timestamp. Use - for a column to ignore.",
    )
    separator: str | None = Field(
        default=None,
        description="Text between two fields: tab, comma, semicolon, pipe, space (any white "
        "space), :: or another character. Detected if omitted.",
    )
    encoding: str | None = Field(
        default=None,
        description="Encoding of the text, such as latin-1. If omitted, the one of the byte "
        "order mark, or UTF-8.",
    )
    quotes: str | None = Field(
        default=None,
        description="How to read quotation marks: none (as text), fields (they may enclose "
        "separators) or lines (also line breaks). If omitted, none between tabs, "
        "pipes, :: and white space, otherwise fields.",
    )
    user_column: str | None = Field(default=None, description="Name of the user column.")
    item_column: str | None = Field(default=None, description="Name of the item column.")
    rating_column: str | None = Field(default=None, description="Name of the rating column.")
    timestamp_column: str | None = Field(default=None, description="Name of the time column.")
    timestamp_format: str = Field(
        default="auto",
        description="How times are written: number, iso (ISO 8601), a format such as %d.%m.%Y, "
        "none to ignore them, or auto (numbers of one unit, or ISO dates).",
    )
    minimum_rating: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Leave out rows with a lower rating. If omitted, every row counts.",
    )
    minimum_interactions: int = Field(
        default=1, ge=1, description="Leave out users with fewer distinct items."
    )
    minimum_item_interactions: int = Field(
        default=1,
        ge=1,
        description="Leave out items with fewer distinct users, and repeat for users and items "
        "until both minimums hold (a k-core). A client refuses it, because it can't "
        "know other clients' users.",
    )
    strict: bool = Field(default=False, description="Refuse a file with unreadable rows.")

    def reading(self) -> Reading:
        """Return the options for reading the file.

        Raises:
            DataError: a value is invalid.
        """
        return Reading(**{name: getattr(self, name) for name in Reading.names()})
