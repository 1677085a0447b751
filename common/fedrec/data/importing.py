"""Taking a public data set that the user downloaded into the cache."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path

from fedrec.data.catalogue import Catalogue
from fedrec.data.fetching import cache_folder
from fedrec.data.interactions import Interactions
from fedrec.data.public import ORIGIN_FILE, PUBLIC, Counts, KnownCopy, how_to_get
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

_LARGEST_FILE_BYTES = 2**31
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDataset:
    """What was imported, and how it compares with the copy that is known.

    Attributes:
        interactions: each pair once, of all users.
        interactions_path, catalogue_path: where they are kept.
        source_file: name of the file that they came from.
        sha256: of that file.
        counts: of the kept users with at least the known copy's minimum of items.
        report: what was read.
        copy: the known copy that it was compared with.
        warnings: what is different; empty for the known copy itself.
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
    """Check a downloaded public data set, normalise it and keep it in the cache.

    Args:
        name: a key of `PUBLIC`.
        path: the file, a folder that holds it, or a zip archive that does.
        strict: refuse a file with unreadable rows, another SHA-256 than the known copy's or,
            where none is known, other counts.
        force: also put a file that differs in the place of the known copy.
        cache: the folder to keep it in; None means `cache_folder`.

    Raises:
        DataError: the data set is unknown, the path holds no file of it, the file cannot be
            read or has no user that counts, `strict` refuses it, or it differs and the cache
            has the known copy already.
        StorageError: the cache cannot be written.
    """
    if name not in PUBLIC:
        raise DataError(
            f"There is no public data set {name!r} to import.",
            remedy=f"Known are: {', '.join(PUBLIC)}. With --into and without a name, "
            "`fedrec data import` takes any file.",
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
            f"{folder} holds the known copy of {PUBLIC[name].title}, from which {file} differs: "
            f"{' '.join(warnings)} Nothing was replaced.",
            remedy="Keep it, or give --force to replace it.",
        )
    prepare_folder(folder, force=True)
    catalogue = Catalogue.from_interactions(kept)
    catalogue.save(folder / CATALOGUE_FILE)
    _write_origin(folder / ORIGIN_FILE, file.name, sha256, counts, warnings)
    # Last, because this is the file that others look for.
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
    """Yield the file itself, the known file below a folder, or that of an archive, unpacked."""
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
    """Return the copy with this sum, else with this file name, else the first."""
    copies = PUBLIC[name].copies
    by_sum = [copy for copy in copies if copy.sha256 == sha256]
    by_name = [copy for copy in copies if copy.file == file.name]
    return (by_sum or by_name or list(copies))[0]


def _holds_known_copy(folder: Path) -> bool:
    """Tell whether the cache has a data set that was imported without a warning."""
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
    """Say how a file differs from the known copy; nothing where it is that copy."""
    if sha256 == copy.sha256:
        return ()
    found = []
    if copy.sha256 is not None:
        found.append(
            f"Its SHA-256 is {sha256}; that of the copy which figures were made with is "
            f"{copy.sha256}."
        )
    if counts != copy.counts:
        found.append(f"It has {counts}; expected {copy.counts}.")
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
            remedy="Name a writable folder in FEDREC_CACHE.",
        ) from error
