"""Where rows come from: compressed files, archives, folders, pipes, and bytes that are no text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import zstandard

from fedrec.data import Reading, read_interactions
from fedrec.data.source import load_data
from fedrec.errors import DataError

FEW = b"user,item\n" + b"".join(b"u%d,i%d\n" % (n % 7, n) for n in range(99))
TEXT = b"user,item\n" + b"".join(b"u%d,i%d\n" % (n % 700, n * n) for n in range(60_000))


def n_rows(path: Path, **options: object) -> int:
    return len(read_interactions(path, Reading(strict=True, **options))[0])  # type: ignore[arg-type]


def zstd(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "packed",
    [
        zstd(TEXT),
        zstd(TEXT, write_content_size=False, write_checksum=True),
        zstd(TEXT[:200_001]) + zstd(b"") + zstd(TEXT[200_001:]),
        b"\x50\x2a\x4d\x18\x01\x00\x00\x00c" + zstd(TEXT) + b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab",
    ],
)
@pytest.mark.parametrize("name", ["v.csv.zst", "v"])
def test_zstd_of_one_frame_or_several(tmp_path, packed, name):
    path = tmp_path / name
    path.write_bytes(packed)
    assert n_rows(path) == 60_000


def test_the_name_inside_a_zstd_file_counts(tmp_path):
    path = tmp_path / "u.data.zst"
    path.write_bytes(zstd(b"1\t2\t5\t100\n"))
    assert read_interactions(path)[1].layout == "u.data"


@pytest.mark.parametrize("kept", [20, 0.5, -1])
@pytest.mark.parametrize("damaged", [False, True])
def test_zstd_that_is_cut_off_or_damaged(tmp_path, kept, damaged):
    whole = zstd(TEXT)
    cut = whole[: int(kept * len(whole)) if kept == 0.5 else int(kept)]
    path = tmp_path / "v.csv.zst"
    path.write_bytes(cut + b"garbage" * 9 if damaged else zstd(TEXT[:99]) + cut)
    with pytest.raises(DataError, match=r"is damaged or cut off: .* after line \d+") as error:
        n_rows(path)
    assert "zstd" in error.value.remedy


@pytest.mark.parametrize("packed", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_tar_archives_are_refused_with_the_command_that_unpacks_them(tmp_path, packed):
    (tmp_path / "v.csv").write_bytes(FEW)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(tmp_path / "v.csv", "v.csv")
    path = tmp_path / "my v.tar.gz"
    path.write_bytes(packed(archive.getvalue()))
    for encoding in (None, "latin-1"):
        with pytest.raises(DataError, match="is a tar archive") as error:
            n_rows(path, encoding=encoding)
        assert f"tar -xf '{path}'" in error.value.remedy


@pytest.mark.parametrize("line", [1, 2, 7, 50_000])
@pytest.mark.parametrize("separator", [b",", b"::"])
@pytest.mark.parametrize("encoding", [None, "utf-8"])
def test_a_zero_byte_is_refused_with_its_line(tmp_path, line, separator, encoding):
    lines = TEXT.replace(b",", separator).split(b"\n")
    lines[line - 1] += b"\x00\x00"
    path = tmp_path / "v.csv"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=f"line {line}, has a zero byte"):
        n_rows(path, encoding=encoding)


def part(path: Path, users: list[object], **more: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table({"user": users, "item": ["x"] * len(users), **more}), path)


def test_a_folder_of_parquet_parts_is_one_table(tmp_path):
    folder = tmp_path / "v.parquet"
    part(folder / "part-00001.snappy.parquet", [3, 4])
    part(folder / "part-00000.snappy.parquet", [1, None])
    part(folder / "day=2" / "part-0.pq", [5, "user"][:1])
    part(folder / "part-00002.parquet", [])
    for beside in ("_SUCCESS", ".part-0.parquet.crc", "_metadata", "_temporary/part-9.parquet"):
        (folder / beside).parent.mkdir(exist_ok=True)
        (folder / beside).write_bytes(b"")
    found, report = read_interactions(folder)
    assert found.user_ids.tolist() == ["5", "1", "3", "4"]
    assert (report.layout, report.n_rows, report.n_bad) == ("parquet", 5, 1)
    assert report.bad_rows[0].line == 3
    assert n_rows(folder / "part-00001.snappy.parquet") == 2


def test_a_folder_of_other_things_is_refused(tmp_path):
    folder = tmp_path / "v"
    folder.mkdir()
    (folder / "v.csv").write_bytes(TEXT)
    with pytest.raises(DataError, match=r"is a folder\. Expected a file, or a folder of Parquet"):
        n_rows(folder)
    part(folder / "a.parquet", [1])
    with pytest.raises(DataError, match="is a folder"):
        n_rows(folder, layout="csv")
    part(folder / "b.parquet", [2], price=[3.0])
    with pytest.raises(DataError, match=r"b\.parquet has other columns than .*a\.parquet: .*price"):
        n_rows(folder)
    (folder / "b.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.parquet cannot be read as Parquet"):
        n_rows(folder)


def test_parts_whose_times_have_other_types(tmp_path):
    import datetime as dt

    part(tmp_path / "a.parquet", [1], time=[dt.datetime(2021, 1, 1)])
    part(tmp_path / "b.parquet", [2], time=[None])
    assert n_rows(tmp_path) == 2
    part(tmp_path / "c.parquet", [3], time=[1_609_495_200])
    with pytest.raises(DataError, match="'time' has dates in some files and none in others"):
        n_rows(tmp_path)


def test_a_pipe_is_read_once_and_kept_for_those_who_ask_again(tmp_path):
    pipe = tmp_path / "v.csv.gz"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(FEW),))
    writer.start()
    assert n_rows(pipe) == 99
    writer.join()
    users, _ = load_data(pipe)
    assert len(users.user_ids) == 7
