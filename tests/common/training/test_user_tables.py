"""A round's private tables: on the device while they fit, and found there by the next round."""

from types import MappingProxyType

import numpy as np
import pytest
import torch

from fedrec.model.state import PrivateState
from fedrec.model.tables import TableRoom
from fedrec.training.device import ChunkTables, DeviceTables, HeldTables, open_tables

CPU = torch.device("cpu")
ROOM = TableRoom(1 << 20)
N_USERS, DIM = 6, 3
BYTES = 4 * N_USERS * (DIM + 1)


def state():
    return PrivateState(
        MappingProxyType(
            {
                "vectors": np.arange(N_USERS * DIM, dtype=np.float32).reshape(N_USERS, DIM),
                "bias": np.arange(N_USERS, dtype=np.float32),
            }
        )
    )


def round_of(private, on_device):
    """Add 100 to the rows of users 1 and 4."""
    tables, users = open_tables(private, ROOM, on_device), torch.tensor([1, 4])
    rows = tables.take(users)
    tables.put(users, {name: values + 100 for name, values in rows.items()})
    return tables, tables.finish()


@pytest.mark.parametrize("n_bytes", [None, 2 * BYTES, 2 * BYTES - 1])
def test_users_who_were_not_put_back_keep_what_they_had(n_bytes):
    before = state()
    tables, after = round_of(before, DeviceTables(CPU, n_bytes))
    # Twice, as the round found them and as it leaves them; a processor has no memory of its own.
    fits = n_bytes is not None and n_bytes >= 2 * BYTES
    assert isinstance(tables, HeldTables if fits else ChunkTables)
    assert tables.finite
    assert before.tensors["bias"].tolist() == [0, 1, 2, 3, 4, 5]
    assert after.tensors["bias"].tolist() == [0, 101, 2, 3, 104, 5]
    assert after.tensors["vectors"][4].tolist() == [112, 113, 114]
    assert after.tensors["vectors"][5].tolist() == [15, 16, 17]


def copied(monkeypatch):
    """Return a list of what leaves numpy from now on, by shape."""
    seen, original = [], torch.from_numpy

    def noting(array):
        seen.append(array.shape)
        return original(array)

    monkeypatch.setattr(torch, "from_numpy", noting)
    return seen


def test_the_next_round_finds_them_on_the_device(monkeypatch):
    on_device = DeviceTables(CPU, 2 * BYTES)
    seen = copied(monkeypatch)
    _, first = round_of(state(), on_device)
    assert seen == [(N_USERS, DIM), (N_USERS,)]
    seen.clear()
    _, second = round_of(first, on_device)
    assert seen == []
    assert first.tensors["bias"].tolist() == [0, 101, 2, 3, 104, 5]
    assert second.tensors["bias"].tolist() == [0, 201, 2, 3, 204, 5]
    # Measuring asks for rows; positions go to the device, tables do not.
    rows = on_device.rows(second, np.array([4, 0]), ["bias", "other"])
    assert {name: values.tolist() for name, values in rows.items()} == {"bias": [204, 0]}
    assert seen == [(2,)]


def test_a_round_that_was_abandoned_is_repeated_from_what_was(monkeypatch):
    """What is on the device belongs to another state, so that it is not taken."""
    on_device, begun = DeviceTables(CPU, 2 * BYTES), state()
    round_of(begun, on_device)
    seen = copied(monkeypatch)
    _, again = round_of(begun, on_device)
    assert len(seen) == 2
    assert again.tensors["bias"].tolist() == [0, 101, 2, 3, 104, 5]


def test_on_a_processor_nothing_is_kept_twice(monkeypatch):
    on_device = DeviceTables(CPU, None)
    _, first = round_of(state(), on_device)
    seen = copied(monkeypatch)
    round_of(first, on_device)
    assert len(seen) == 2


@pytest.mark.parametrize("n_bytes", [None, 2 * BYTES, 0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_told(n_bytes, bad):
    tables = open_tables(state(), ROOM, DeviceTables(CPU, n_bytes))
    users = torch.tensor([2])
    tables.put(users, {"bias": torch.tensor([bad]), "vectors": torch.zeros(1, DIM)})
    tables.finish()
    assert not tables.finite


def test_without_private_tables_nothing_is_wrong():
    tables = open_tables(PrivateState(MappingProxyType({})), ROOM, DeviceTables(CPU, None))
    assert not tables.finish().tensors
    assert tables.finite
