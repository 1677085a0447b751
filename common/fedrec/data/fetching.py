"""Fetching public datasets once and keeping them in a cache that is verified at every use."""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import Interactions
from fedrec.data.readers import ReadReport, read_interactions
from fedrec.data.reading import Reading
from fedrec.errors import DataError
from fedrec.processes import child_command

_REQUIREMENT = "recbole==1.2.1"
_FOLDER_IN_WHEEL = "recbole/dataset_example/ml-100k"
_ML_100K_SHA256 = {
    "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
}
_ML_100K_LICENCE = (
    "MovieLens 100K, GroupLens Research, University of Minnesota: for research; not for "
    "commercial use and not to be redistributed without permission. Cite F. M. Harper and J. A. "
    "Konstan, The MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015."
)
_LARGEST_FILE_BYTES = 64 * 2**20
_CONNECT_TIMEOUT_SECONDS = 10
_DOWNLOAD_TIMEOUT_SECONDS = 120
_OFFLINE_REMEDY = (
    "Check the connection to the package index (pip's settings apply) and run it again; or copy "
    "the cache of a machine that has it and name its folder in FEDREC_CACHE."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedDataset:
    """A dataset on this machine.

    Attributes:
        name: its key in `DATASETS`.
        interactions_path: its interactions, readable by `read_interactions`.
        catalogue: its items with titles, rows in canonical order.
        licence: what its owners allow, to be shown to the user who fetches it.
    """

    name: str
    interactions_path: Path
    catalogue: Catalogue
    licence: str

    def read(self) -> tuple[Interactions, ReadReport]:
        """Read the interactions; a bad row is an error, for the file is known to have none."""
        return read_interactions(self.interactions_path, Reading(strict=True))


def cache_folder() -> Path:
    """Return where fetched data is kept: FEDREC_CACHE, or fedrec in the user's cache folder."""
    chosen = os.environ.get("FEDREC_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedrec"


def fetch_ml_100k(cache: str | Path | None = None, *, force: bool = False) -> FetchedDataset:
    """Return MovieLens 100K: 943 users, 1682 films, 100000 ratings.

    The files come out of a published wheel that is downloaded with pip and never installed or
    run. They are checked against known SHA-256 sums when fetched and whenever they are used; a
    damaged cache is fetched again.

    Args:
        cache: the folder to keep it in; None means `cache_folder`.
        force: fetch it even if the cache has it.

    Raises:
        DataError: it is not in the cache and the index cannot be reached, or what the index
            has is not the expected data.
    """
    folder = (cache_folder() if cache is None else Path(cache)) / "ml-100k"
    if force or not _is_intact(folder, _ML_100K_SHA256):
        _fetch_from_wheel(folder, _ML_100K_SHA256)
    return FetchedDataset(
        name="ml-100k",
        interactions_path=folder / "ml-100k.inter",
        catalogue=_read_ml_100k_titles(folder / "ml-100k.item"),
        licence=_ML_100K_LICENCE,
    )


DATASETS: dict[str, Callable[..., FetchedDataset]] = {"ml-100k": fetch_ml_100k}


def _is_intact(folder: Path, sums: dict[str, str]) -> bool:
    try:
        return all(
            sha256((folder / name).read_bytes()).hexdigest() == expected
            for name, expected in sums.items()
        )
    except OSError:
        return False


def _fetch_from_wheel(folder: Path, sums: dict[str, str]) -> None:
    """Download the wheel, check the files in it and put them into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # On the same file system as the folder, so that each file is moved in one step.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
            wheel = _download_wheel(Path(temporary))
            contents = {name: _extract(wheel, name, expected) for name, expected in sums.items()}
            for name, content in contents.items():
                staged = Path(temporary) / name
                staged.write_bytes(content)
                staged.replace(folder / name)
    except OSError as error:
        raise DataError(
            f"The cache {folder} cannot be written: {error}.",
            remedy="Name a writable folder in FEDREC_CACHE.",
        ) from error


def _download_wheel(folder: Path) -> Path:
    command = child_command("pip", "download")
    command += ["--no-deps", "--only-binary", ":all:"]
    command += ["--retries", "0", "--timeout", str(_CONNECT_TIMEOUT_SECONDS), "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), _REQUIREMENT]
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_DOWNLOAD_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"Downloading {_REQUIREMENT} took longer than {_DOWNLOAD_TIMEOUT_SECONDS} seconds.",
            remedy=_OFFLINE_REMEDY,
        ) from error
    wheels = sorted(folder.glob("*.whl"))
    if finished.returncode or not wheels:
        said = [line for line in finished.stderr.splitlines() if line.strip()] or ["nothing"]
        raise DataError(
            f"pip could not download {_REQUIREMENT}, which contains the data; it said: "
            f"{said[-1].strip()}",
            remedy=_OFFLINE_REMEDY,
        )
    return wheels[0]


def _extract(wheel: Path, name: str, expected_sha256: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{_FOLDER_IN_WHEEL}/{name}") as file:
            content = file.read(_LARGEST_FILE_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"The downloaded {wheel.name} has no readable {_FOLDER_IN_WHEEL}/{name}: {error}.",
            remedy="Check which package index pip is set to use.",
        ) from error
    found = sha256(content).hexdigest()
    if found != expected_sha256:
        raise DataError(
            f"{name} in the downloaded {wheel.name} has the SHA-256 {found}; expected "
            f"{expected_sha256}.",
            remedy="Check which package index pip is set to use; nothing was kept.",
        )
    return content


def _read_ml_100k_titles(path: Path) -> Catalogue:
    """Read id, title and year; the file is complete, ordered by id and checked by its sum.

    Two rows are odd: item 267 is nameless (spelt "unkonwn"), and item 1412 has "V" for its year
    because the year is in its title already.
    """
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    titles = []
    for _, title, year, _ in rows:
        named = f"{title} ({year})" if year.isdigit() else title
        titles.append("unknown" if title == "unkonwn" else named)
    return Catalogue.of((row[0] for row in rows), titles)
