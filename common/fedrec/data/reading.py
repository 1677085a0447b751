"""How a file is to be read: the section `data` of a settings file, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pydantic import Field

from fedrec.errors import DataError
from fedrec.section import Section

ROLES = ("user", "item", "rating", "timestamp")
"""What a column may be; ``-`` is any other."""

SEPARATORS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
"""The words for what is between two fields; other characters stand for themselves."""


UNQUOTED = ("\t", "|", "::", " ")
"""Between fields like these a quotation mark is text, unless `Reading.quotes` says otherwise."""
_WORDS = {text: word for word, text in SEPARATORS.items()}
_NOTHING = frozenset(
    {"", "nan", "NaN", "NA", "N/A", "<NA>", "NULL", "null", "None", "\\N"}
)  # fmt: skip
"""What exports write where a value is missing."""


def separator_word(separator: str) -> str:
    """Return the word for what is between two fields, or that itself where it has none."""
    return _WORDS.get(separator, separator)


def is_nothing(text: str) -> bool:
    """Tell whether a field has no value: it is empty, or a word for that."""
    return text.strip() in _NOTHING


def flag_of(name: str) -> str:
    """Return how a command's flag and the setting of the same meaning are called."""
    return f"--{name.replace('_', '-')} (data.{name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read one file; see the settings of the same names for what each means.

    Raises:
        DataError: a value that has no meaning.
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
        """Check what can be checked without the file."""
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
                "as in %d.%m.%Y.",
                options={"timestamp_format": "auto"},
            )

    @property
    def roles(self) -> tuple[str, ...] | None:
        """What each column of a file without a header is, in order; None where it has one."""
        if self.columns is None:
            return None
        roles = tuple(word.strip() for word in self.columns.split(","))
        unknown = [role for role in roles if role not in (*ROLES, "-")]
        twice = [role for role in ROLES if roles.count(role) > 1]
        if unknown or twice or "user" not in roles or "item" not in roles:
            listed = ", ".join(map(repr, unknown or twice))
            wrong = "names no user or no item"
            if unknown:
                wrong = f"{listed} is none of {', '.join(ROLES)} and -"
            elif twice:
                wrong = f"{listed} stands there twice"
            raise DataError(
                f"columns is {self.columns!r}: {wrong}.",
                remedy=f"Name each column of the file in {flag_of('columns')}, in order: user and "
                "item, rating and timestamp where it has them, - for any other.",
                options={"columns": None},
            )
        return roles

    @property
    def separating(self) -> str | None:
        """What is between two fields, None where it has to be found out."""
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
        """Return what quotation marks do between these separators: none, fields or lines."""
        if self.quotes is None:
            return "none" if separator in UNQUOTED else "fields"
        return self.quotes

    def refuse_beyond(self, layout: str, *allowed: str) -> None:
        """Refuse what a layout would ignore.

        Raises:
            DataError: an option that says how to split or name columns is none of `allowed`.
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
                f"The layout {layout} does not go with {', '.join(map(flag_of, beyond))}: its "
                "columns have fixed places, or no names to find them by.",
                remedy=f"Leave that out, or choose another {flag_of('layout')}: csv has a header, "
                "table has none.",
                options=dict.fromkeys(beyond),
            )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all options."""
        return tuple(field.name for field in fields(cls))


class DataSettings(Section):
    """Where this machine's interactions are, how they are read, and which of them count."""

    path: str | None = Field(
        default=None,
        description="File with the interactions, or the name of a public data set in the cache: "
        "ml-100k, ml-1m, filmtrust, amazon-video.",
    )
    layout: str | None = Field(
        default=None,
        description="File layout: csv (a header), table (none), jsonl, parquet, u.data, "
        "ratings.dat, ratings.csv, ratings.txt, inter or amazon; found out from the file where it "
        "is missing.",
    )
    catalogue: str | None = Field(
        default=None, description="The federation's public catalogue of items."
    )
    columns: str | None = Field(
        default=None,
        description="Columns of a file without a header, in order, as in user,item,rating,"
        "timestamp; - is a column that does not count.",
    )
    separator: str | None = Field(
        default=None,
        description="Between two fields: tab, comma, semicolon, pipe, space (any white space), :: "
        "or another character; found out where it is missing.",
    )
    encoding: str | None = Field(
        default=None,
        description="Encoding of the text, as in latin-1; UTF-8, or what its byte order mark "
        "says, where it is missing.",
    )
    quotes: str | None = Field(
        default=None,
        description="What quotation marks do: none (they are text), fields (they may hold "
        "separators) or lines (line breaks, too); where it is missing, none between tabs, pipes, "
        ":: and white space, else fields.",
    )
    user_column: str | None = Field(default=None, description="Name of the user column.")
    item_column: str | None = Field(default=None, description="Name of the item column.")
    rating_column: str | None = Field(default=None, description="Name of the rating column.")
    timestamp_column: str | None = Field(default=None, description="Name of the time column.")
    timestamp_format: str = Field(
        default="auto",
        description="How times are written: number, iso (ISO 8601), a format as in %d.%m.%Y, none "
        "to leave them out, or auto: numbers of one unit, or ISO dates.",
    )
    minimum_rating: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Rows with a lower rating are left out; every row counts where it is missing.",
    )
    minimum_interactions: int = Field(
        default=1, ge=1, description="Users with fewer distinct items are left out."
    )
    minimum_item_interactions: int = Field(
        default=1,
        ge=1,
        description="Items with fewer distinct users are left out, then users and items in turn "
        "until both minimums hold (a k-core). One client cannot know it: refused there.",
    )
    strict: bool = Field(default=False, description="Refuse a file with unreadable rows.")

    def reading(self) -> Reading:
        """Return how the file is to be read.

        Raises:
            DataError: a value that has no meaning.
        """
        return Reading(**{name: getattr(self, name) for name in Reading.names()})
