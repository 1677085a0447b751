"""Public data sets by name: their sources, their known copies, and their place in the cache.

`PUBLIC` has one entry for each. The SHA-256 sums belong to the copies that produced the figures in
docs/explanation/reproduction.md. Without a copy there is no sum, and the counts alone identify a
file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fedrec.data.writing import INTERACTIONS_FILE
from fedrec.errors import DataError, SettingsError

ORIGIN_FILE = "origin.json"
"""Written next to imported interactions: the name, SHA-256 and counts of their source file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of users, items and distinct pairs, among users with at least `minimum` items."""

    minimum: int
    users: int
    items: int
    interactions: int

    def __str__(self) -> str:
        who = f" (users with {self.minimum} items or more)" if self.minimum > 1 else ""
        return f"{self.interactions} interactions of {self.users} users with {self.items} items" + (
            who
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCopy:
    """A file in which a data set is distributed.

    Attributes:
        file: its usual name.
        layout: a key of `READERS`.
        sha256: the SHA-256 of the copy behind the published figures, or None if unknown.
        counts: the expected counts, with each pair kept once.
        note: a caveat for figures made with it.
    """

    file: str
    layout: str
    sha256: str | None
    counts: Counts
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicDataset:
    """A public data set.

    Attributes:
        title: its name in full.
        source: its owners' download page.
        licence: the owners' terms.
        citation: the reference that the owners ask for.
        copies: the files in which it is distributed. The first is preferred.
        duplicates: how repeated pairs are treated.
        get: the command, or the download and the command, that gets it.
        cached: file names of the interactions in the cache, in order of preference.
    """

    title: str
    source: str
    licence: str
    citation: str
    copies: tuple[KnownCopy, ...]
    duplicates: str = "Each pair of user and item counts once, at its latest time."
    get: str
    cached: tuple[str, ...] = (INTERACTIONS_FILE,)


_MOVIELENS_LICENCE = (
    "For research, not for commercial use and not to be redistributed without permission of "
    "GroupLens Research, University of Minnesota. See the README in the archive."
)
_MOVIELENS = (
    "F. M. Harper and J. A. Konstan, The MovieLens Datasets: History and Context, ACM TiiS 5(4), "
    "2015."
)

PUBLIC: Mapping[str, PublicDataset] = MappingProxyType(
    {
        "ml-100k": PublicDataset(
            title="MovieLens 100K",
            source="https://grouplens.org/datasets/movielens/100k/",
            licence=_MOVIELENS_LICENCE,
            citation=_MOVIELENS,
            copies=(
                KnownCopy(
                    file="u.data",
                    layout="u.data",
                    sha256="111b236b64b4e2d00f96b1031dde214bb2ad8bfb0b4922dd166db968f3431477",
                    counts=Counts(minimum=1, users=943, items=1682, interactions=100_000),
                    note="Copies differ in the order of their rows, which has no effect here.",
                ),
            ),
            get="fedrec data fetch ml-100k",
            cached=(INTERACTIONS_FILE, "ml-100k.inter"),
        ),
        "ml-1m": PublicDataset(
            title="MovieLens 1M",
            source="https://grouplens.org/datasets/movielens/1m/",
            licence=_MOVIELENS_LICENCE,
            citation=_MOVIELENS,
            copies=(
                KnownCopy(
                    file="ratings.dat",
                    layout="ratings.dat",
                    sha256=None,
                    counts=Counts(minimum=1, users=6040, items=3706, interactions=1_000_209),
                    note="The original file. Papers print the same counts.",
                ),
                KnownCopy(
                    file="interactions.csv",
                    layout="csv",
                    sha256="5227bdcbc717e328c7aa4dd9fda090c6093d6960c79dabd2867a9a56eb725aeb",
                    counts=Counts(minimum=1, users=6040, items=3695, interactions=920_193),
                    note="An implicit variant without times, with 920,193 of 1,000,209 "
                    "interactions and 3,695 of 3,706 items. Without times the held-out items "
                    "are random, so figures differ from the original's.",
                ),
            ),
            get="download ml-1m.zip there, then: fedrec data import ml-1m ml-1m.zip",
        ),
        "filmtrust": PublicDataset(
            title="FilmTrust",
            source="https://guoguibing.github.io/librec/datasets.html",
            licence="The file states no licence. See the source's terms.",
            citation="G. Guo, J. Zhang and N. Yorke-Smith, A Novel Bayesian Similarity Measure "
            "for Recommender Systems, IJCAI 2013.",
            copies=(
                KnownCopy(
                    file="ratings.txt",
                    layout="ratings.txt",
                    sha256="977afa8d83c75736ba072f7938b1c345f7bd83455f07167ac1949d3198d61677",
                    counts=Counts(minimum=5, users=1227, items=2059, interactions=34_886),
                    note="No times, so the held-out items are random.",
                ),
            ),
            duplicates="Four rows are duplicates, and each pair counts once. One paper counts "
            "34,889 interactions of the same 1,227 users.",
            get="download filmtrust.zip there, then: fedrec data import filmtrust filmtrust.zip",
        ),
        "amazon-video": PublicDataset(
            title="Amazon Instant Video, ratings only",
            source="http://jmcauley.ucsd.edu/data/amazon/",
            licence="The file states no licence. See the source's terms.",
            citation="R. He and J. McAuley, Ups and Downs: Modeling the Visual Evolution of "
            "Fashion Trends with One-Class Collaborative Filtering, WWW 2016.",
            copies=(
                KnownCopy(
                    file="ratings.csv",
                    layout="amazon",
                    sha256="a1292e4a4dba6c37be6ae5dc83d4404af96bf3eace4c8954e2f4e8360a3cdd76",
                    counts=Counts(minimum=5, users=8072, items=11_830, interactions=63_836),
                    note="The copy holds only users with 5 items or more. Its times end in July "
                    "2014. A paper with the same counts cites the collection of 2018.",
                ),
                KnownCopy(
                    file="ratings_Amazon_Instant_Video.csv",
                    layout="amazon",
                    sha256=None,
                    counts=Counts(minimum=5, users=8072, items=11_830, interactions=63_836),
                    note="All users. Compare the counts of those with 5 items or more with the "
                    "papers'.",
                ),
            ),
            get="download the ratings of Amazon Instant Video there (user, item, rating, time), "
            "then: fedrec data import amazon-video ratings.csv",
        ),
    }
)


def cache_folder() -> Path:
    """Return the cache folder: FEDREC_CACHE, or fedrec in the user's cache folder.

    Raises:
        SettingsError: the account has no home folder, as in some containers.
    """
    chosen = os.environ.get("FEDREC_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedrec"
    except RuntimeError:
        raise SettingsError(
            "This account has no home folder, so it has no cache for data sets.",
            remedy="Set FEDREC_CACHE to a writable folder.",
        ) from None


def cached_path(name: str, cache: str | Path | None = None) -> Path:
    """Return the path of a public data set's cached interactions, present or not."""
    folder = (cache_folder() if cache is None else Path(cache)) / name
    paths = [folder / file for file in PUBLIC[name].cached]
    return next((path for path in paths if path.is_file()), paths[0])


def find(name: str, cache: str | Path | None = None) -> Path:
    """Return the cached interactions of a public data set.

    Raises:
        DataError: the data set is unknown or not on this machine.
    """
    if name not in PUBLIC:
        raise DataError(
            f"There is no public data set {name!r}.", remedy=f"Choose one of: {', '.join(PUBLIC)}."
        )
    path = cached_path(name, cache)
    if not path.is_file():
        raise _missing(name, path)
    return path


def require_if_public(path: str) -> None:
    """Refuse a path in the cache at which a public data set is missing.

    Raises:
        DataError: the data set is missing. The remedy tells how to get it.
    """
    for name in PUBLIC:
        if not Path(path).is_file() and Path(path) == cached_path(name):
            raise _missing(name, Path(path))


def _missing(name: str, path: Path) -> DataError:
    dataset = PUBLIC[name]
    return DataError(
        f"{dataset.title} ({dataset.copies[0].file}) is not on this machine, expected {path}.",
        remedy=how_to_get(name),
    )


def other_counts(name: str, cache: str | Path | None = None) -> str:
    """Return how the cached data set's counts differ from the papers' counts, or empty."""
    expected = PUBLIC[name].copies[0].counts
    try:
        record = json.loads((cached_path(name, cache).parent / ORIGIN_FILE).read_text("utf-8"))
        found = Counts(**record["counts"])
    except (OSError, ValueError, TypeError, KeyError):
        # A fetched data set was checked by its sum.
        return ""
    return "" if found == expected else f"{found} instead of {expected}"


def how_to_get(name: str) -> str:
    """Return where a data set comes from and the command to get it, as a sentence."""
    dataset = PUBLIC[name]
    return f"Get it: {dataset.source}. Then: {dataset.get}"
