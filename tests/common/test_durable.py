"""Atomic writing: all or nothing."""

import os
import stat

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


def test_a_private_file_is_private_from_the_first_byte(tmp_path, monkeypatch):
    modes = []
    with replacing_text(tmp_path / "file.txt", private=True) as file:
        file.write("secret")
        replace = os.replace
        monkeypatch.setattr(
            os, "replace", lambda new, path: (modes.append(new.stat().st_mode), replace(new, path))
        )
    modes.append((tmp_path / "file.txt").stat().st_mode)
    assert [stat.S_IMODE(mode) for mode in modes] == [0o600, 0o600]


def test_success_replaces_it(tmp_path):
    path = tmp_path / "file.txt"
    with replacing_text(path) as file:
        file.write("a\r\né\n")
    assert path.read_bytes() == "a\r\né\n".encode()
