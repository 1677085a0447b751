"""Recordings: what was written is read again, and damage is told from an end that is missing."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import pytest

from fedrec.errors import StorageError
from fedrec.wire.recording import MAGIC, MAX_RECORDED_BYTES, Frame, FrameReader, FrameWriter


def frame(number: int, message: bytes) -> Frame:
    return Frame(
        call=number, method="/a.B/C", kind="request", unix_seconds=1.5 * number, message=message
    )


FRAMES = [frame(1, b"one"), frame(2, b""), frame(3, bytes(range(256)) * 40)]


def written(path: Path, frames: list[Frame], *, max_bytes: int = 1 << 20) -> list[bool]:
    writer = FrameWriter(path, max_bytes=max_bytes)
    taken = [writer.append(each) for each in frames]
    writer.close()
    return taken


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "new" / "a.frames"
    assert written(path, FRAMES) == [True, True, True]
    reader = FrameReader(path)
    assert list(reader) == FRAMES
    assert (reader.truncated, reader.limited) == (False, False)


def test_only_its_owner_reads_it(tmp_path):
    umask = os.umask(0)
    try:
        written(tmp_path / "folder" / "a.frames", [])
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "folder" / "a.frames").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700


def test_an_existing_file_is_left_alone(tmp_path):
    (tmp_path / "a.frames").write_bytes(b"something")
    with pytest.raises(StorageError, match="cannot be written"):
        FrameWriter(tmp_path / "a.frames", max_bytes=1 << 20)
    assert (tmp_path / "a.frames").read_bytes() == b"something"


def test_a_file_cut_anywhere_is_readable_up_to_there(tmp_path):
    small = FRAMES[:2]
    path = tmp_path / "a.frames"
    written(path, small)
    whole = path.read_bytes()
    ends = [len(MAGIC)]
    for each in small:
        ends.append(ends[-1] + 23 + len(each.method) + len(each.message))
    assert ends[-1] == len(whole)
    for size in range(len(MAGIC), len(whole) + 1):
        path.write_bytes(whole[:size])
        reader = FrameReader(path)
        assert list(reader) == small[: sum(end <= size for end in ends[1:])]
        assert reader.truncated == (size not in ends)


def test_the_size_limit_ends_the_recording(tmp_path):
    path = tmp_path / "a.frames"
    many = [frame(number, bytes(100)) for number in range(1, 50)]
    taken = written(path, many, max_bytes=1000)
    assert path.stat().st_size <= 1000
    kept = sum(taken)
    assert taken == [True] * kept + [False] * (len(many) - kept)
    assert 0 < kept < len(many)
    reader = FrameReader(path)
    assert list(reader) == many[:kept]
    assert (reader.truncated, reader.limited) == (False, True)


def test_a_message_that_no_file_takes_ends_it_too(tmp_path):
    path = tmp_path / "a.frames"
    huge = frame(2, bytes(MAX_RECORDED_BYTES + 1))
    assert written(path, [FRAMES[0], huge, FRAMES[0]], max_bytes=1 << 30) == [True, False, False]
    assert path.stat().st_size < 1000
    assert list(FrameReader(path)) == [FRAMES[0]]


def test_a_frame_that_claims_too_much_is_damage_and_takes_no_memory(tmp_path):
    path = tmp_path / "a.frames"
    written(path, FRAMES[:1])
    head = struct.pack("<IHBQd", MAX_RECORDED_BYTES + 1, 6, 0, 2, 0.0)
    path.write_bytes(path.read_bytes() + head)
    with pytest.raises(StorageError, match="impossible head"):
        list(FrameReader(path))


@pytest.mark.parametrize("content", [b"", b"fedrec wire recording 9\n", b"x" * 100])
def test_other_files_are_no_recordings(tmp_path, content):
    path = tmp_path / "a.frames"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="does not begin like a recording"):
        list(FrameReader(path))
