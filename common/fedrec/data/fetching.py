"""Put public data sets into the cache: fetched and verified, or imported from a download."""

from __future__ import annotations

import json
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from pathlib import Path

from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import Interactions
from fedrec.data.public import ORIGIN_FILE, PUBLIC, Counts, KnownCopy, cache_folder, how_to_get
from fedrec.data.readers import ReadReport, read_interactions
from fedrec.data.reading import Reading
from fedrec.data.writing import (
    CATALOGUE_FILE,
    INTERACTIONS_FILE,
    prepare_folder,
    write_interactions,
)
from fedrec.durable import replacing_text
from fedrec.errors import DataError, StorageError
from fedrec.processes import child_command

_REQUIREMENT = "recbole==1.2.1"
_FOLDER_IN_WHEEL = "recbole/dataset_example/ml-100k"
_ML_100K_SHA256 = {
    "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
}
_ML_100K_LICENCE = (
    "MovieLens 100K, GroupLens Research, University of Minnesota: for research, not for "
    "commercial use and not to be redistributed without permission. Cite F. M. Harper and J. A. "
    "Konstan, The MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015."
)
_LARGEST_IN_WHEEL_BYTES = 64 * 2**20
_CONNECT_TIMEOUT_SECONDS = 10
_DOWNLOAD_TIMEOUT_SECONDS = 120
_OFFLINE_REMEDY = (
    "Check the connection to the package index (pip's settings apply) and run the command again. "
    "Or copy the cache from another machine and set FEDREC_CACHE to its folder."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedDataset:
    """A dataset on this machine.

    Attributes:
        name: its key in `DATASETS`.
        interactions_path: its interactions, readable by `read_interactions`.
        catalogue: its items with titles, rows in canonical order.
        licence: its owners' terms, to be shown to the person that fetches it.
    """

    name: str
    interactions_path: Path
    catalogue: Catalogue
    licence: str

    def read(self) -> tuple[Interactions, ReadReport]:
        """Read the interactions. A bad row is an error, because the file is known to have none."""
        return read_interactions(self.interactions_path, Reading(strict=True))


def fetch_ml_100k(cache: str | Path | None = None, *, force: bool = False) -> FetchedDataset:
    """Return MovieLens 100K: 943 users, 1682 films, 100000 ratings.

    The files come from a published wheel, which is downloaded with pip but never installed or run.
    Their SHA-256 sums are checked after fetching and on every use. A damaged cache is fetched
    again.

    Args:
        cache: the folder for the data, or None for `cache_folder`.
        force: fetch it even if the cache has it.

    Raises:
        DataError: the data set is not in the cache and the index cannot be reached, or the index
            has other data.
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
    """Download the wheel, check its files and move them into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A folder on the same file system, so that each file is moved atomically.
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
            remedy="Set FEDREC_CACHE to a writable folder.",
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
        printed = [line for line in finished.stderr.splitlines() if line.strip()] or ["nothing"]
        raise DataError(
            f"pip could not download {_REQUIREMENT}, which contains the data. Its last line was: "
            f"{printed[-1].strip()}",
            remedy=_OFFLINE_REMEDY,
        )
    return wheels[0]


def _extract(wheel: Path, name: str, expected_sha256: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{_FOLDER_IN_WHEEL}/{name}") as file:
            content = file.read(_LARGEST_IN_WHEEL_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"The downloaded {wheel.name} has no readable {_FOLDER_IN_WHEEL}/{name}: {error}.",
            remedy="Check which package index pip is set to use.",
        ) from error
    found = sha256(content).hexdigest()
    if found != expected_sha256:
        raise DataError(
            f"{name} in the downloaded {wheel.name} has the SHA-256 {found}, expected "
            f"{expected_sha256}.",
            remedy="Check which package index pip is set to use. Nothing was kept.",
        )
    return content


def _read_ml_100k_titles(path: Path) -> Catalogue:
    """Read id, title and year from a file that is complete, ordered by id and checked by its sum.

    Two rows are odd: item 267 is nameless (spelt "unkonwn"), and item 1412 has "V" for its year
    because the year is in its title already.
    """
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    titles = []
    for _, title, year, _ in rows:
        named = f"{title} ({year})" if year.isdigit() else title
        titles.append("unknown" if title == "unkonwn" else named)
    return Catalogue.of((row[0] for row in rows), titles)


_LARGEST_FILE_BYTES = 2**31
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDataset:
    """An imported data set, compared with the known copy.

    Attributes:
        interactions: each pair once, of all users.
        interactions_path, catalogue_path: the files in the cache.
        source_file: name of the file that they came from.
        sha256: the SHA-256 of that file.
        counts: over the kept users that reach the known copy's minimum of items.
        report: the report from reading the file.
        copy: the known copy that it was compared with.
        warnings: the differences, or empty for the known copy itself.
    """

    interactions: Interactions
    interactions_path: Path
    catalogue_path: Path
    source_file: str
    sha256: str
    counts: Counts
    report: ReadReport
    copy: KnownCopy
    warnings: tuple[str, ...]


def import_public(
    name: str,
    path: str | Path,
    *,
    strict: bool = False,
    force: bool = False,
    cache: str | Path | None = None,
) -> ImportedDataset:
    """Check a downloaded public data set, normalise it and put it into the cache.

    Args:
        name: a key of `PUBLIC`.
        path: the file, a folder that holds it, or a zip archive that does.
        strict: refuse a file with unreadable rows, a SHA-256 that differs from the known copy's or,
            if none is known, different counts.
        force: let a file that differs replace the known copy.
        cache: the folder for the data, or None for `cache_folder`.

    Raises:
        DataError: the data set is unknown, the path has no file of it, or the file cannot be read
            or has no user that counts. Also if `strict` refuses it, or it differs and the cache has
            the known copy.
        StorageError: the cache cannot be written.
    """
    if name not in PUBLIC:
        raise DataError(
            f"There is no public data set {name!r} to import.",
            remedy=f"Known names are: {', '.join(PUBLIC)}. `fedrec data import --into` without a "
            "name takes any file.",
        )
    with _located(name, Path(path)) as file:
        sha256 = _sha256(file)
        copy = _matching_copy(name, file, sha256)
        found, report = read_interactions(file, Reading(layout=copy.layout, strict=strict))
    kept = found.deduplicated()
    counts = _counted(kept, copy.counts.minimum)
    warnings = _differences(copy, sha256, counts, report)
    if strict and warnings:
        raise DataError(
            f"{file.name} is not the known copy of {PUBLIC[name].title}. {' '.join(warnings)}",
            remedy=f"{how_to_get(name)}. Without --strict it is imported as it is.",
        )
    folder = (cache_folder() if cache is None else Path(cache)) / name
    if not counts.users:
        raise DataError(
            f"{file} is not {PUBLIC[name].title}: it has {counts}. {' '.join(warnings)}",
            remedy=how_to_get(name),
        )
    if warnings and not force and _holds_known_copy(folder):
        raise DataError(
            f"{folder} holds the known copy of {PUBLIC[name].title}, which differs from {file}: "
            f"{' '.join(warnings)} Nothing was replaced.",
            remedy="Keep the known copy, or give --force to replace it.",
        )
    prepare_folder(folder, force=True)
    catalogue = Catalogue.from_interactions(kept)
    catalogue.save(folder / CATALOGUE_FILE)
    _write_origin(folder / ORIGIN_FILE, file.name, sha256, counts, warnings)
    # This file comes last, because its presence marks a complete data set.
    write_interactions(folder / INTERACTIONS_FILE, kept)
    return ImportedDataset(
        interactions=kept,
        interactions_path=folder / INTERACTIONS_FILE,
        catalogue_path=folder / CATALOGUE_FILE,
        source_file=file.name,
        sha256=sha256,
        counts=counts,
        report=report,
        copy=copy,
        warnings=warnings,
    )


@contextmanager
def _located(name: str, path: Path) -> Iterator[Path]:
    """Yield the file itself, the known file below a folder, or the unpacked file of an archive."""
    names = [copy.file for copy in PUBLIC[name].copies]
    if path.is_dir():
        inside = [found for wanted in names for found in sorted(path.rglob(wanted))]
        if not inside:
            raise _nothing_in(path, names, name)
        yield inside[0]
    elif path.is_file() and zipfile.is_zipfile(path):
        with tempfile.TemporaryDirectory(prefix="fedrec-import-") as folder:
            yield _unpacked(path, names, Path(folder), name)
    else:
        if not path.is_file():
            raise DataError(f"{path} is not there.", remedy=how_to_get(name))
        yield path


def _unpacked(archive: Path, names: list[str], folder: Path, name: str) -> Path:
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [
                member
                for wanted in names
                for member in opened.infolist()
                if Path(member.filename).name == wanted
            ]
            if not members:
                raise _nothing_in(archive, names, name)
            if members[0].file_size > _LARGEST_FILE_BYTES:
                raise DataError(f"{members[0].filename} in {archive} is larger than 2 GiB.")
            target = folder / Path(members[0].filename).name
            with opened.open(members[0]) as source, target.open("wb") as out:
                while block := source.read(_CHUNK_BYTES):
                    out.write(block)
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(
            f"{archive} cannot be unpacked: {error}.", remedy="Download it again, or unpack it."
        ) from error
    return target


def _nothing_in(path: Path, names: list[str], name: str) -> DataError:
    return DataError(
        f"{path} holds no {' and no '.join(names)}.",
        remedy=f"{how_to_get(name)}. Or name the file itself.",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _matching_copy(name: str, file: Path, sha256: str) -> KnownCopy:
    """Return the copy with this sum, or else with this file name, or else the first one."""
    copies = PUBLIC[name].copies
    by_sum = [copy for copy in copies if copy.sha256 == sha256]
    by_name = [copy for copy in copies if copy.file == file.name]
    return (by_sum or by_name or list(copies))[0]


def _holds_known_copy(folder: Path) -> bool:
    """Return whether the cache has a data set that was imported without a warning."""
    try:
        record = json.loads((folder / ORIGIN_FILE).read_text("utf-8"))
        return record["warnings"] == [] and (folder / INTERACTIONS_FILE).is_file()
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _counted(kept: Interactions, minimum: int) -> Counts:
    active = kept.with_minimum(minimum)
    return Counts(
        minimum=minimum, users=active.n_users, items=active.n_items, interactions=len(active)
    )


def _differences(
    copy: KnownCopy, sha256: str, counts: Counts, report: ReadReport
) -> tuple[str, ...]:
    """Describe how a file differs from the known copy, or return nothing for that copy itself."""
    if sha256 == copy.sha256:
        return ()
    found = []
    if copy.sha256 is not None:
        found.append(
            f"Its SHA-256 is {sha256}. The published figures were made with a copy whose SHA-256 "
            f"is {copy.sha256}."
        )
    if counts != copy.counts:
        found.append(f"It has {counts}, expected {copy.counts}.")
    if report.n_bad:
        found.append(f"{report.left_out}.")
    return tuple(found)


def _write_origin(
    path: Path, file: str, sha256: str, counts: Counts, warnings: tuple[str, ...]
) -> None:
    record = {"file": file, "sha256": sha256, "counts": asdict(counts), "warnings": list(warnings)}
    try:
        with replacing_text(path) as out:
            out.write(json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}.",
            remedy="Set FEDREC_CACHE to a writable folder.",
        ) from error
