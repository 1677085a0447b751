"""Atomic writing: all or nothing."""

import pytest

from fedrec.durable import replacing_text


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing_text(path) as file:
        file.write("new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_success_replaces_it(tmp_path):
    path = tmp_path / "file.txt"
    with replacing_text(path) as file:
        file.write("a\r\né\n")
    assert path.read_bytes() == "a\r\né\n".encode()
