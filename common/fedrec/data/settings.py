"""The section `data` of a settings file."""

from __future__ import annotations

from pydantic import Field

from fedrec.data.reading import Reading
from fedrec.section import Section


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
