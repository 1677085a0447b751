"""The model's files: what is in them, who may read them, and what is refused."""

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fedrec.durable import write_whole
from fedrec.errors import StorageError, VersionMismatch
from fedrec.recommender import ModelFile, UsersFile


def test_a_model_comes_back_bit_by_bit(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    loaded = ModelFile.load(path)
    assert loaded.shared.canonical_bytes() == model.shared.canonical_bytes()
    assert (loaded.plan, loaded.round) == (model.plan, 17)
    assert loaded.catalogue_fingerprint == model.catalogue_fingerprint
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_models_file_has_nothing_of_the_users(model, users, tmp_path):
    model.save(tmp_path / "m")
    with safe_open(tmp_path / "m", framework="numpy") as file:
        assert set(file.keys()) == {"shared.item_embedding", "holders"}
        assert file.metadata()["version"] == "2"
    assert b"anna" not in (tmp_path / "m").read_bytes()


def test_users_travel_between_processes_bit_by_bit(users):
    content = b"".join(users.parts())
    found = UsersFile.from_bytes(content, "a pipe")
    assert found.user_ids == users.user_ids
    assert found.seen_items.tolist() == users.seen_items.tolist()
    assert b"".join(found.parts()) == content
    for damaged in (content[:-1], b"", content[8:]):
        with pytest.raises(StorageError, match="a pipe"):
            UsersFile.from_bytes(damaged, "a pipe")


def test_the_users_file_belongs_to_its_owner(users, tmp_path):
    path = tmp_path / "users.safetensors"
    users.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = UsersFile.load(path)
    assert loaded.user_ids == users.user_ids
    assert [loaded.seen_of(user).tolist() for user in range(3)] == [[0, 1, 4], [1], [0, 1, 2, 3, 4]]
    vectors = loaded.private.tensors["user_embedding"]
    assert np.array_equal(vectors, users.private.tensors["user_embedding"])


def test_another_format_is_refused_with_a_remedy(tmp_path):
    for kind, loader in (("fedrec model", ModelFile), ("fedrec users", UsersFile)):
        for version, named in (("1.0", "format 1"), ("3", "format 3"), ("", "no format number")):
            metadata = {"format": kind, "version": version}
            save_file({"shared.x": np.zeros(1)}, tmp_path / "f", metadata)
            with pytest.raises(VersionMismatch, match=named) as error:
                loader.load(tmp_path / "f")
            assert "Install" in error.value.remedy


@pytest.mark.parametrize("loader", [ModelFile, UsersFile])
def test_other_files_are_refused(loader, model, users, tmp_path):
    with pytest.raises(StorageError, match="cannot be read"):
        loader.load(tmp_path / "missing")
    (tmp_path / "garbage").write_bytes(b"\x80\x04pickle?")
    with pytest.raises(StorageError, match="cannot be read"):
        loader.load(tmp_path / "garbage")
    save_file({"x": np.zeros(1)}, tmp_path / "plain")
    with pytest.raises(StorageError, match="format"):
        loader.load(tmp_path / "plain")
    (users if loader is ModelFile else model).save(tmp_path / "swapped")
    with pytest.raises(StorageError, match="format"):
        loader.load(tmp_path / "swapped")


def test_incomplete_files_are_refused(tmp_path):
    metadata = {"format": "fedrec model", "version": "2"}
    save_file({"shared.item_embedding": np.zeros((1, 1))}, tmp_path / "f", metadata)
    with pytest.raises(StorageError, match="metadata"):
        ModelFile.load(tmp_path / "f")
    metadata = {"format": "fedrec users", "version": "2"}
    save_file({"private.user_embedding": np.zeros((1, 1))}, tmp_path / "f", metadata)
    with pytest.raises(StorageError, match="no readable"):
        UsersFile.load(tmp_path / "f")


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"old", private=False)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_whole(path, b"new", private=False)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(StorageError, match="cannot be written"):
        write_whole(tmp_path / "no" / "folder", b"", private=True)
