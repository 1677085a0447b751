"""Where compiled code is kept, and which of an image's is taken."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedrec.compiling import folder_for_compiled


@pytest.fixture
def image(tmp_path, monkeypatch):
    """Return a folder with compiled code on a file system that is read-only."""
    folder = tmp_path / "image" / "sources"
    (folder / "module").mkdir(parents=True)
    (folder / "module" / "function.nbi").write_bytes(b"compiled")
    for path in (folder, folder / "module"):
        path.chmod(0o755)
    access = os.access

    def read_only(path: Path, mode: int) -> bool:
        return access(path, mode) and not (mode & os.W_OK and path.is_relative_to(folder))

    monkeypatch.setattr(os, "access", read_only)
    return folder


def test_what_is_chosen_and_writable_is_taken(tmp_path):
    chosen, own = tmp_path / "chosen", tmp_path / "own"
    assert folder_for_compiled(chosen, own) == chosen
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700
    assert not own.exists()


def test_without_a_choice_it_is_the_users_own(tmp_path):
    assert folder_for_compiled(None, tmp_path / "cache" / "own") == tmp_path / "cache" / "own"


def test_what_a_read_only_image_brings_is_copied_once(image, tmp_path):
    own = tmp_path / "cache" / "compiled" / "sources"
    assert folder_for_compiled(image, own) == own
    copied = own / "module" / "function.nbi"
    assert copied.read_bytes() == b"compiled"
    assert [path.name for path in own.parent.iterdir()] == [own.name]
    # What was compiled since then stays.
    (own / "module" / "another.nbi").write_bytes(b"for this processor")
    copied.write_bytes(b"again")
    assert folder_for_compiled(image, own) == own
    assert copied.read_bytes() == b"again"
    assert (own / "module" / "another.nbi").exists()


def test_what_others_could_have_written_is_not_taken(image, tmp_path):
    image.chmod(0o777)
    own = tmp_path / "own"
    assert folder_for_compiled(image, own) == own
    assert not list(own.iterdir())


def test_a_choice_that_cannot_be_made_leaves_the_users_own(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    own = tmp_path / "own"
    assert folder_for_compiled(tmp_path / "file" / "chosen", own) == own


def test_without_any_nothing_is_kept(image, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert folder_for_compiled(image, tmp_path / "file" / "own") is None
