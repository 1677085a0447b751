"""What data owners know is found wherever it stands, and not where it does not."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from fedrec.errors import DataError
from fedrec.model.state import PrivateState
from fedrec_lab.audit.wire.truth import Search, Truth

ITEMS = [f"item-{number}" for number in range(300)]
HISTORY = [3, 17, 40, 41, 90, 130, 131, 200, 250, 299]
VECTORS = np.random.default_rng(3).normal(size=(2, 8)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    state = tmp_path / "client" / "state"
    state.mkdir(parents=True)
    private = PrivateState(MappingProxyType({"user_embedding": VECTORS}))
    (state / "private-1.bin").write_bytes(private.to_bytes())
    rows = [f"person-1@example.org,item-{number}" for number in HISTORY]
    rows += ["bob,item-5", "42,item-5"]
    (tmp_path / "client" / "data.csv").write_text("\n".join(["user_id,item_id", *rows]) + "\n")
    return tmp_path / "client"


def search_of(folder: Path) -> Search:
    return Search(Truth.of([folder], ITEMS))


NOISE = np.random.default_rng(4).bytes(3001)


@pytest.mark.parametrize("before", [0, 1, 5, 8, 1001])
@pytest.mark.parametrize(
    ("leak", "what"),
    [
        (VECTORS[1].tobytes(), "private vectors"),
        (VECTORS[0].astype(np.float64).tobytes(), "private vectors"),
        (np.array(HISTORY, dtype="<i4").tobytes(), "histories"),
        (np.array(HISTORY, dtype="<i8").tobytes(), "histories"),
        (b"person-1@example.org", "user ids"),
    ],
    ids=["float32", "float64", "int32", "int64", "id"],
)
def test_a_leak_is_found_wherever_it_begins(folder, leak, what, before):
    search = search_of(folder)
    search.look(NOISE[:before] + leak + NOISE[:777], "here")
    assert {found for found, _ in search.found} == {what}


def test_nothing_is_found_where_nothing_is(folder):
    search = search_of(folder)
    search.look(NOISE, "here")
    search.look(bytes(4000), "here")
    search.look(np.arange(300, dtype="<i4").tobytes(), "here")
    search.look(b"", "here")
    search.look(b"\1" * 9, "here")
    assert not search.found


def test_short_ids_are_compared_as_a_whole_and_numbers_not_at_all(folder):
    search = search_of(folder)
    search.look_at_text("bobsleigh", "here")
    search.look_at_text("42", "here")
    assert not search.found
    search.look_at_text("bob", "table notes.text")
    assert dict(search.found) == {("user ids", "table notes.text"): 1}
    assert search.truth.unsearched_ids == 1


def test_a_folder_with_nothing_in_it_is_refused(tmp_path):
    with pytest.raises(DataError, match="neither private states nor interactions"):
        Truth.of([tmp_path], ITEMS)
