"""Private tables that outgrow memory: the same bits, and memory within the budget."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from conformance.party import Party, assert_same, plan_of
from safetensors.numpy import load, save

from fedrec.algorithms import ALGORITHMS
from fedrec.data import generate, leave_one_out
from fedrec.errors import StorageError, TrainingError
from fedrec.model.state import PrivateState
from fedrec.model.tables import BLOCK_BYTES, TableRoom, copy_rows, is_mapped, rows_of
from fedrec.model.tensor_file import file_parts
from fedrec.training.learner import Learner

N_ITEMS = 60
GROWTH = Path(__file__).with_name("measure_peak.py")


@pytest.fixture(scope="module")
def users():
    data = generate(n_users=37, n_items=N_ITEMS, n_clusters=3, interactions_per_user=9, seed=3)
    return leave_one_out(data.interactions, data.catalogue)


def state_of(**tensors):
    return PrivateState(MappingProxyType(tensors))


@pytest.fixture
def mapped(tmp_path):
    """Tables of 3,000 rows and 9 MB that lie in a file, and what is in them."""
    room = TableRoom(1 << 20, tmp_path)
    tables = room.empty(3_000, {"vector": (7, 107), "bias": ()})
    values = np.random.default_rng(0).normal(size=(3_000, 7, 107)).astype(np.float32)
    tables["vector"][:] = values
    tables["bias"][:] = values[:, 0, 0]
    return tables, values


def test_only_tables_that_outgrow_memory_are_mapped(tmp_path):
    room = TableRoom(4_000, tmp_path)
    widths = {"vector": (9,), "bias": ()}
    assert not any(map(is_mapped, room.empty(100, widths).values()))
    assert all(map(is_mapped, room.empty(101, widths).values()))
    assert room.empty(101, widths)["bias"].shape == (101,)


def test_the_files_have_no_name(mapped, tmp_path):
    assert list(tmp_path.iterdir()) == []


def test_rows_of_mapped_tables_are_those_of_arrays(mapped):
    tables, values = mapped
    assert values.nbytes > 2 * BLOCK_BYTES
    rows = np.random.default_rng(1).integers(0, 3_000, 2_500)
    found = rows_of(tables["vector"], rows)
    assert not is_mapped(found)
    assert np.array_equal(found, values[rows])
    target = np.zeros_like(values)
    copy_rows(tables["vector"], target, from_rows=rows, to_rows=rows)
    assert np.array_equal(target[rows], values[rows])
    assert np.count_nonzero(target) == np.unique(rows).size * 7 * 107
    assert np.array_equal(rows_of(tables["bias"], rows), values[rows, 0, 0])


def test_a_state_in_parts_is_the_librarys_file(mapped, tmp_path):
    tables, values = mapped
    raw = b"".join(state_of(**tables).parts())
    expected = {"private.vector": values, "private.bias": values[:, 0, 0].copy()}
    assert raw == save(expected)
    assert max(map(len, state_of(**tables).parts())) <= BLOCK_BYTES
    path = tmp_path / "state"
    path.write_bytes(raw)
    again = PrivateState.open(path)
    assert all(map(is_mapped, again.tensors.values()))
    assert_same(again, PrivateState.from_bytes(raw))
    with pytest.raises(ValueError, match="read-only"):
        again.tensors["bias"][0] = 1.0


def test_parts_of_any_kind_are_read_by_the_library():
    arrays = {
        "ids": np.frombuffer(b"abc", dtype=np.uint8),
        "where": np.arange(4),
        "wide": np.ones((2, 3)),
        "rows": np.ones((0, 5), dtype=np.float32),
    }
    found = load(b"".join(file_parts(arrays, {"format": "test"})))
    assert set(found) == set(arrays)
    for name, values in arrays.items():
        assert np.array_equal(found[name], values)
        assert found[name].dtype == values.dtype


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08" + bytes(7) + b"[]      "])
def test_other_files_are_no_private_state(tmp_path, content):
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="not a stored private state"):
        PrivateState.open(path)


def test_a_disk_without_room_is_named_before_anything_is_written(tmp_path):
    room = TableRoom(1 << 20, tmp_path)
    with pytest.raises(StorageError, match=r"personal_scores.*client\.memory_mib") as caught:
        room.empty(1 << 28, {"personal_scores": (1 << 20,)})
    assert str(tmp_path) in str(caught.value)
    assert "raise client.memory_mib" in caught.value.remedy


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_mapped_tables_change_no_bit(name, users, tmp_path):
    plan = plan_of(name, "dense")
    held = Party.of(plan, users)
    learner = Learner(plan, N_ITEMS, device="cpu", scratch=tmp_path, table_bytes=1)
    private = learner.initial_private(users)
    assert all(map(is_mapped, private.tensors.values()))
    assert_same(private, held.private)
    shared, expected = held.shared, held.private
    for round_id in range(2, 5):
        # In the last of the rounds one user in three sits out.
        some = None if round_id < 4 else np.arange(len(users)) % 3 > 0
        one = learner.contribute("train", round_id, shared, users, private, some)
        other = held.learner.contribute("train", round_id, shared, users, expected, some)
        assert np.array_equal(one.vector, other.vector)
        assert all(map(is_mapped, one.private.tensors.values()))
        assert_same(one.private, other.private)
        private, expected = one.private, other.private
        shared = learner.apply("train", round_id, shared, one.vector)
    one = learner.contribute("evaluate", 5, shared, users, private)
    other = held.learner.contribute("evaluate", 5, shared, users, expected)
    assert np.array_equal(one.vector, other.vector)


def test_divergence_is_seen_in_mapped_tables(users, tmp_path):
    plan = plan_of("pfedrec", "dense")
    learner = Learner(plan, N_ITEMS, device="cpu", scratch=tmp_path, table_bytes=1)
    private = learner.initial_private(users)
    private.tensors["user_embedding"][:] = np.nan
    with pytest.raises(TrainingError, match=r"algorithm\.item_rate_scale"):
        learner.contribute("train", 2, learner.initial_shared(), users, private)


@pytest.mark.slow
def test_peak_memory_stays_within_the_budget(tmp_path):
    """Of a table of 256 MB under a budget of 64 MiB, measured in a process of its own.

    Three times the budget: besides the chunk in work there are the shared model, the sums, torch's
    own buffers and what the allocator keeps. With the tables in memory the same federation takes
    28 times the budget.
    """
    done = subprocess.run(
        [sys.executable, str(GROWTH), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after, table = (int(value) for value in done.stdout.split())
    assert table == 256_000_000
    assert after - before < 3 * (64 << 20) < table
