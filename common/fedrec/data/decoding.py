"""Open text files in the compression and encoding that their first bytes show."""

from __future__ import annotations

import atexit
import bz2
import codecs
import gzip
import io
import lzma
import shlex
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, TextIO

from fedrec.data.reading import flag_of
from fedrec.errors import DataError

_PACKED_BYTES = 1 << 14


class _ZstdFile(io.RawIOBase):
    """The content of a zstd file. zstandard's own reader accepts a truncated file as complete."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._file = path.open("rb")
        self._broken = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self._frame = self._new_frame()
        self._packed, self._plain = b"", memoryview(b"")
        self._is_within = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            packed = self._packed or self._file.read(_PACKED_BYTES)
            if not packed:
                if self._is_within:
                    raise EOFError("a frame is truncated")
                return 0
            try:
                self._plain = memoryview(self._frame.decompress(packed))
            except self._broken as error:
                raise EOFError(str(error)) from error
            self._packed, self._is_within = b"", not self._frame.eof
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, self._new_frame()
        n_read = min(len(buffer), len(self._plain))
        buffer[:n_read], self._plain = self._plain[:n_read], self._plain[n_read:]
        return n_read

    def close(self) -> None:
        self._file.close()
        super().close()


COMPRESSIONS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda path: io.BufferedReader(_ZstdFile(path)),
    b"\x50\x2a\x4d\x18": lambda path: io.BufferedReader(_ZstdFile(path)),
}
"""The first bytes of compressed files, and the functions that open them."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SUFFIXES = frozenset({".gz", ".bz2", ".xz", ".zst"})
_STDIN = Path("/dev/stdin")
_TAR_BYTES = 1 << 9
_HEAD_BYTES = 1 << 16
_HEAD_CHARS = 1 << 16
_HEAD_LINES = 50
SAMPLE_ROWS = 1 << 13
"""The number of rows from which columns are judged."""
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def plain_name(path: Path) -> Path:
    """Return a file's name without the suffix of its compression."""
    return path.with_suffix("") if path.suffix.lower() in _SUFFIXES else path


def on_disk(path: Path) -> Path:
    """Return a path that can be opened repeatedly. A pipe is copied to a temporary file.

    ``-`` is standard input, unless a file has that name.
    """
    if str(path) == "-" and not path.exists():
        path = _STDIN
    return path if path.is_file() or path.is_dir() or not path.exists() else _copied(path)


@cache
def _copied(pipe: Path) -> Path:
    # Only its owner can read it, and it is deleted when the process ends.
    copy = tempfile.NamedTemporaryFile(prefix="fedrec-piped-")  # noqa: SIM115
    atexit.register(copy.close)
    with open(sys.stdin.fileno() if pipe == _STDIN else pipe, "rb", closefd=pipe != _STDIN) as file:
        shutil.copyfileobj(file, copy)
    copy.flush()
    return Path(copy.name)


def _open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading bytes and decompress it if needed.

    Raises:
        DataError: the file is an archive.
    """
    source = on_disk(path)
    with source.open("rb") as file:
        start = file.read(_TAR_BYTES)
    opened: Callable[[Path], Any] = partial(Path.open, mode="rb")
    opened = next((each for magic, each in COMPRESSIONS.items() if start.startswith(magic)), opened)
    with opened(source) as file:
        is_tar = file.read(_TAR_BYTES)[257:262] == b"ustar"
    if is_tar:
        raise DataError(
            f"{path} is a tar archive. Expected a single file.",
            remedy=f"Unpack it first: tar -xf {shlex.quote(str(path))}. Then name one of its "
            "files.",
        )
    if start.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{path} is a zip archive or a spreadsheet.",
            remedy=f"Unpack it first: python3 -m zipfile -e {shlex.quote(str(path))} FOLDER. Save "
            "a spreadsheet as CSV.",
        )
    found: IO[bytes] = opened(source)
    return found


@contextmanager
def open_text(path: Path, encoding: str | None = None) -> Iterator[TextIO]:
    """Open a text file, with line ends unchanged.

    Args:
        encoding: None follows a byte order mark and otherwise takes UTF-8.

    Raises:
        DataError: the file is not text, or the encoding is unknown.
    """
    with _open_bytes(path) as raw:
        chosen = encoding or _encoding_of(path)
        try:
            text = io.TextIOWrapper(raw, encoding=chosen, newline="")
        except LookupError:
            raise DataError(
                f"There is no encoding {chosen!r}.",
                remedy=f"Set {flag_of('encoding')} to utf-8, latin-1, cp1252, utf-16 or another "
                "name that Python knows.",
                options={"encoding": "utf-8"},
            ) from None
        with text:
            yield text


def head_of(path: Path, encoding: str | None = None, n_lines: int = _HEAD_LINES) -> list[str]:
    """Return some dozens of a file's first lines, without blank ones."""
    n_chars = _HEAD_CHARS * n_lines // _HEAD_LINES
    with open_text(path, encoding) as text:
        head = text.read(n_chars)
    if "\x00" in head:
        raise zero_byte(path, head.count("\n", 0, head.index("\x00")) + 1)
    lines = head.splitlines()
    if len(head) == n_chars and len(lines) > 1:
        del lines[-1]  # it may be truncated
    return [line for line in lines if line and not line.isspace()][:n_lines]


def _encoding_of(path: Path) -> str:
    """Return the encoding that a file's first bytes indicate.

    Raises:
        DataError: the file has zero bytes and no mark, so it is not UTF-8.
    """
    with _open_bytes(path) as raw:
        head = raw.read(_HEAD_BYTES)
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    zeros = head.count(0)
    if not zeros:
        return "utf-8"
    guess = next(
        (
            name
            for name, places in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2]))
            if places.count(0) == zeros and zeros * 3 > len(head)
        ),
        None,
    )
    if guess is None:
        raise zero_byte(path, head.count(b"\n", 0, head.index(0)) + 1)
    raise DataError(
        f"{path} has zero bytes in its first {len(head)} bytes. It may be UTF-16 without a byte "
        "order mark.",
        remedy=f"Set its encoding with {flag_of('encoding')}.",
        options={"encoding": guess},
    )


def zero_byte(path: Path, line: int) -> DataError:
    """Return the error for a zero byte, which text files never contain."""
    return DataError(
        f"{path}, line {line}, has a zero byte. The file is damaged or not a table of text.",
        remedy="Check the path. To remove zero bytes from a text file: tr -d '\\000' < FILE > COPY",
    )


@contextmanager
def reading_problems(path: Path, encoding: str | None) -> Iterator[None]:
    """Raise an error that names the problem and the line if reading a file fails."""
    try:
        yield
    except UnicodeDecodeError as error:
        line, found = _undecodable(path, encoding or "utf-8")
        where = f"line {line}" if line else "the file"
        other = "latin-1" if encoding in (None, "utf-8") else "utf-8"
        raise DataError(
            f"{path} is not {(encoding or error.encoding).upper()} text: {where} has {found}.",
            remedy=f"Set its encoding with {flag_of('encoding')}: latin-1 or cp1252 for Western "
            "European text, utf-16 for some spreadsheets' exports.",
            options={"encoding": other},
        ) from error
    except UnicodeError as error:
        raise DataError(
            f"{path} is not {encoding} text: {error}.",
            remedy=f"Set its encoding with {flag_of('encoding')}.",
            options={"encoding": "utf-8"},
        ) from error
    except _DAMAGE as error:
        raise DataError(
            f"{path} is damaged or cut off: its compressed data ends or breaks after line "
            f"{_lines_before_damage(path)}.",
            remedy=f"Fetch or compress it again. `gzip -t {shlex.quote(str(path))}` (or bzip2, xz, "
            "zstd) tells whether a copy is complete.",
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}.", remedy="Check the path and its permissions."
        ) from error


def _undecodable(path: Path, encoding: str) -> tuple[int, str]:
    """Return the first line that an encoding cannot decode, or 0 if lines cannot be told apart."""
    try:
        with _open_bytes(path) as raw:
            for number, line in enumerate(raw, start=1):
                try:
                    line.decode(encoding)
                except UnicodeDecodeError as error:
                    if "16" in encoding or "32" in encoding:
                        break
                    return number, f"the byte 0x{line[error.start]:02x}"
    except (*_DAMAGE, OSError):
        pass
    return 0, "bytes that it does not have"


def _lines_before_damage(path: Path) -> int:
    number = 0
    try:
        with _open_bytes(path) as raw:
            for _ in raw:
                number += 1
    except (*_DAMAGE, OSError):
        pass
    return number
