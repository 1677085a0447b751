"""The shared state: rows kept apart say what whole tables do, and bad bytes are refused."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from safetensors.numpy import load, save

from fedrec.errors import StorageError
from fedrec.model.state import Rest, SharedState

INDEX = np.array([1, 4, 5])
HOLDERS = np.array([0, 9, 1, 2, 7, 8])


def whole() -> SharedState:
    tables = {
        "table": np.arange(12.0).reshape(6, 2),
        "bias": np.arange(6.0) * 0.5,
        "net": np.array([[3.0]]),
        "pace": np.array(1.5),
    }
    return SharedState(MappingProxyType(tables), HOLDERS)


def apart() -> SharedState:
    """A first version with three trained rows, which moved by 100 since."""
    state = whole().apart(INDEX, ("table", "bias"))
    part = state.part()
    moved = {
        name: values + 100.0 if name in ("table", "bias") else values
        for name, values in part.kept.items()
    }
    return state.with_part(SharedState(MappingProxyType(moved), part.holders))


def test_rows_kept_apart_are_those_of_the_whole_table():
    before = whole()
    state = before.apart(INDEX, ("table", "bias"))
    assert state.kept["table"].tolist() == [[2.0, 3.0], [8.0, 9.0], [10.0, 11.0]]
    assert state.part().holders is not None
    assert state.part().holders.tolist() == [9, 7, 8]  # type: ignore[union-attr]
    for name, values in before.tensors.items():
        assert np.array_equal(state.tensors[name], values)
    assert state.apart(INDEX.copy(), ("table", "bias")) is state


def test_a_part_that_moved_moves_its_rows_and_no_others():
    before, after = whole(), apart()
    assert after.tensors["bias"].tolist() == [0.0, 100.5, 1.0, 1.5, 102.0, 102.5]
    assert after.tensors["table"][0].tolist() == [0.0, 1.0]
    assert after.rows("bias", INDEX).tolist() == [100.5, 102.0, 102.5]
    assert after.rows("bias", np.array([0, 1])).tolist() == [0.0, 100.5]
    assert np.array_equal(before.tensors["bias"], np.arange(6.0) * 0.5)
    assert after.with_holders(HOLDERS * 0).rest is None
    assert after.with_holders(HOLDERS * 0).tensors["bias"][1] == 100.5


def test_bytes_leave_out_what_the_reader_has():
    first = whole()
    state = apart().over(first)
    short, long = state.to_bytes(first), state.to_bytes()
    assert len(short) < len(long)
    for again in (SharedState.from_bytes(short, lambda: first), SharedState.from_bytes(long)):
        assert again.canonical_bytes() == state.canonical_bytes()
        for name, values in state.tensors.items():
            assert np.array_equal(again.tensors[name], values)
    rows_alone = SharedState.from_bytes(short)
    assert rows_alone.canonical_bytes() == state.canonical_bytes()
    with pytest.raises(StorageError, match="not stored here"):
        rows_alone.tensors["net"].any()
    with pytest.raises(StorageError, match="has the initial rows"):
        SharedState.from_bytes(long, lambda: first)


def test_every_value_row_count_and_name_is_in_the_canonical_bytes():
    state = apart()
    assert state.rest is not None
    others = [
        SharedState(MappingProxyType(dict(state.kept) | {name: values + 1.0}), HOLDERS, state.rest)
        for name, values in state.kept.items()
    ]
    others.append(SharedState(state.kept, HOLDERS + 1, state.rest))
    others.append(SharedState(state.kept, HOLDERS, Rest(np.array([0, 4, 5]), state.rest.tables)))
    others.append(SharedState(state.kept, HOLDERS))
    renamed = {("other" if name == "net" else name): rows for name, rows in state.kept.items()}
    others.append(SharedState(MappingProxyType(renamed), HOLDERS, state.rest))
    others.append(replace(state, trained=1))
    others += [replace(state, recounted=counts) for counts in (HOLDERS, HOLDERS + 1)]
    found = {other.canonical_bytes() for other in (state, *others)}
    assert len(found) == len(others) + 1


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ([4, 1, 5], "not in the order of the catalogue"),
        ([1, 1, 5], "not in the order of the catalogue"),
        ([-1, 1, 5], "not in the order of the catalogue"),
        ([1, 4, 6], "rows after the 6"),
        ([1, 4], "expected 2 rows"),
        # Differences of these are positive, modulo 2^64.
        ([0, 2**63 - 1, -2], "not in the order of the catalogue"),
        ([[1, 4, 5]], "not in the order of the catalogue"),
    ],
)
def test_rows_that_fit_no_table_are_refused(index, why):
    first, state = whole(), apart().over(whole())
    assert state.rest is not None
    tables = MappingProxyType({name: first.tensors[name] for name in ("table", "bias")})
    wrong = SharedState(state.kept, HOLDERS, Rest(np.array(index), tables))
    with pytest.raises(StorageError, match=why):
        SharedState.from_bytes(wrong.to_bytes(first), lambda: first)


def test_a_later_count_leaves_rows_and_holders_as_they_are():
    state = replace(apart(), trained=4)
    assert state.last_counted is HOLDERS and state.part().last_counted.tolist() == [9, 7, 8]  # type: ignore[union-attr]
    again = state.counted(HOLDERS - 1)
    assert again.rest is state.rest and again.holders is HOLDERS and again.kept is state.kept
    assert again.part().last_counted.tolist() == [8, 6, 7]  # type: ignore[union-attr]
    for version in (again, again.with_part(again.part()), again.over(whole())):
        assert (version.trained, version.number) == (4, 6)
        read = SharedState.from_bytes(version.to_bytes())
        assert read.canonical_bytes() == version.canonical_bytes()
        assert (read.trained, read.last_counted.tolist()) == (4, (HOLDERS - 1).tolist())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("trained", None, "has no number of rounds"),
        ("trained", np.array(-1), "has no number of rounds"),
        ("trained", np.array([1]), "has no number of rounds"),
        ("trained", np.array(1.0), "trained has numbers of type float64"),
        ("recounted", np.arange(5), "two item counts do not match"),
        ("holders", None, "two item counts do not match"),
    ],
)
def test_counts_that_are_none_are_refused(name, value, why):
    arrays = load(replace(apart(), recounted=HOLDERS).to_bytes())
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    with pytest.raises(StorageError, match=why):
        SharedState.from_bytes(save(arrays))


@pytest.mark.parametrize("name", ["index", "holders", "rows.bias", "shared.net"])
@pytest.mark.parametrize("kind", ["complex64", "uint64", "bool"])
def test_numbers_of_another_kind_are_refused(name, kind):
    first = whole()
    arrays = load(apart().over(first).to_bytes(first))
    arrays[name] = arrays[name].astype(kind)
    with pytest.raises(StorageError, match=f"{name} has numbers of type {kind}"):
        SharedState.from_bytes(save(arrays), lambda: first)


def test_unknown_rows_are_not_guessed():
    first = whole()
    rows_alone = SharedState.from_bytes(apart().over(first).to_bytes(first))
    with pytest.raises(StorageError, match="not stored here"):
        rows_alone.over(first)


def test_rows_of_a_table_that_the_first_version_does_not_have_are_refused():
    state, first = apart(), SharedState({"table": whole().tensors["table"]})
    assert state.rest is not None
    with pytest.raises(StorageError, match="it has trained rows of"):
        SharedState.from_bytes(state.to_bytes(whole_tables_of(state)), lambda: first)


def whole_tables_of(state: SharedState) -> SharedState:
    assert state.rest is not None and state.rest.tables is not None
    return SharedState(state.rest.tables)
