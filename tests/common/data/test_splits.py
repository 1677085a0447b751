"""Leave-one-out: the held-out items, the tie rule and independence from the order of rows."""

from __future__ import annotations

import gc
import os
from hashlib import sha256
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrec import ids
from fedrec.data import Catalogue, Interactions, UserSplit, leave_one_out, splits
from fedrec.data.splits import hold_out, undivided
from fedrec.errors import CatalogueMismatch, DataError, StorageError
from fedrec.ids import digest

Row = tuple[str, str, int]


def build(rows: list[Row]) -> Interactions:
    return Interactions.from_arrays(
        [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    )


def split_of(rows: list[Row]) -> UserSplit:
    interactions = build(rows)
    return leave_one_out(interactions, Catalogue.from_interactions(interactions))


def as_lists(split: UserSplit) -> list[tuple[str, list[int], int, int]]:
    return [
        (
            user,
            split.train_of(index).tolist(),
            int(split.validation_items[index]),
            int(split.test_items[index]),
        )
        for index, user in enumerate(split.user_ids)
    ]


def plain_split(rows: list[Row], catalogue: Catalogue) -> list[tuple[str, list[int], int, int]]:
    """The definition, one user at a time."""
    latest: dict[tuple[str, str], int] = {}
    for user, item, time in rows:
        latest[user, item] = max(time, latest.get((user, item), -1))
    result = []
    for user in sorted({user for user, _ in latest}):
        history = sorted(
            (time, sha256(f"{user}\t{item}".encode()).digest()[:8], item)
            for (owner, item), time in latest.items()
            if owner == user
        )
        items = [catalogue.item_ids.index(item) for _, _, item in history]
        if len(items) < 3:
            result.append((user, sorted(items), -1, -1))
        else:
            result.append((user, sorted(items[:-2]), items[-2], items[-1]))
    return result


def test_last_is_test_and_second_last_validation():
    split = split_of([("u", "c", 1), ("u", "a", 4), ("u", "d", 2), ("u", "b", 3)])
    assert as_lists(split) == [("u", [2, 3], 1, 0)]
    assert split.train_indptr.tolist() == [0, 2]
    assert split.train_items.dtype == split.test_items.dtype == np.int64


def test_equal_times_are_ordered_by_sha256() -> None:
    # printf 'u\ti1' | sha256sum and so on; the largest is the most recent:
    # i1 34e33928455e307f, i2 5bf1bba7744b8b0e, i3 450756654f052bc7, i4 de4d39bf9b2bd9f1
    split = split_of([("u", item, 7) for item in ("i1", "i2", "i3", "i4")])
    assert as_lists(split) == [("u", [0, 2], 1, 3)]


def test_missing_times_follow_the_same_rule_and_come_first():
    items = ["i1", "i2", "i3", "i4"]
    interactions = Interactions.from_arrays(["u"] * 4, items)
    catalogue = Catalogue.of(items)
    assert as_lists(leave_one_out(interactions, catalogue)) == [("u", [0, 2], 1, 3)]
    some = Interactions.from_arrays(["u"] * 4, items, [0, -1, -1, -1])
    assert as_lists(leave_one_out(some, catalogue)) == [("u", [1, 2], 3, 0)]


def test_short_histories_are_all_training():
    split = split_of([("u1", "a", 1), ("u2", "a", 1), ("u2", "b", 2), ("u2", "a", 3)])
    assert as_lists(split) == [("u1", [0], -1, -1), ("u2", [0, 1], -1, -1)]


def test_a_repeated_item_counts_once_at_its_latest_time():
    split = split_of([("u", "a", 1), ("u", "b", 2), ("u", "c", 3), ("u", "a", 4)])
    assert as_lists(split) == [("u", [1], 2, 0)]


def test_users_below_the_minimum_are_left_out():
    interactions = build([("u1", "a", 1), ("u1", "a", 2), ("u2", "a", 1), ("u2", "b", 2)])
    catalogue = Catalogue.of(["a", "b"])
    split = leave_one_out(interactions, catalogue, minimum_interactions=2)
    assert split.user_ids == ("u2",)
    with pytest.raises(DataError, match="None of the 2 users has 3 interactions"):
        leave_one_out(interactions, catalogue, minimum_interactions=3)


def test_users_are_ordered_as_numbers():
    assert split_of([("10", "a", 1), ("9", "a", 1)]).user_ids == ("9", "10")


def test_items_outside_the_catalogue_are_refused():
    with pytest.raises(CatalogueMismatch, match="'b'"):
        leave_one_out(build([("u", "a", 1), ("u", "b", 2)]), Catalogue.of(["a"]))


def test_no_data_is_refused():
    with pytest.raises(DataError):
        leave_one_out(Interactions.from_arrays([], []), Catalogue.of([]))


ROWS = st.lists(
    st.tuples(st.sampled_from("uvw"), st.sampled_from("abcdef"), st.integers(-1, 2)),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(rows=ROWS, seed=st.integers(0, 99))
def test_the_split_is_the_plain_definition_for_any_order(rows, seed):
    catalogue = Catalogue.of("fbdace")
    shuffled = build(rows).take(np.random.default_rng(seed).permutation(len(rows)))
    assert as_lists(leave_one_out(shuffled, catalogue)) == plain_split(rows, catalogue)


@settings(deadline=None)
@given(rows=ROWS)
def test_undivided_is_the_split_put_together_again(rows):
    interactions = build(rows)
    catalogue = Catalogue.from_interactions(interactions)
    found = undivided(interactions, catalogue)
    assert as_lists(found) == as_lists(leave_one_out(interactions, catalogue).whole())
    plain: dict[str, set[int]] = {}
    for user, item, _ in rows:
        plain.setdefault(user, set()).add(catalogue.item_ids.index(item))
    assert as_lists(found) == [(user, sorted(plain[user]), -1, -1) for user in sorted(plain)]


def test_undivided_refuses_what_the_split_refuses():
    with pytest.raises(DataError, match="None of the 0 users"):
        undivided(build([]), Catalogue.of(["a"]))
    with pytest.raises(CatalogueMismatch, match="'b'"):
        undivided(build([("u", "b", 1)]), Catalogue.of(["a"]))


def test_selecting_users():
    split = split_of(
        [("u1", "a", 1), ("u2", "a", 1), ("u2", "b", 2), ("u2", "c", 3), ("u3", "c", 3)]
    )
    everyone = as_lists(split)
    chosen = split.select(np.array([2, 0, 2]))
    assert as_lists(chosen) == [everyone[2], everyone[0], everyone[2]]
    assert chosen.train_indptr.tolist() == [0, 1, 2, 3]
    assert len(split.select(np.array([], dtype=np.int64))) == 0
    with pytest.raises(DataError, match="User 3 is outside"):
        split.select(np.array([3]))


def test_user_keys_depend_on_the_user_alone():
    # printf 'fedrec user\tu' | sha256sum; printf 'fedrec user\t196' | sha256sum
    split = split_of([("u", "a", 1), ("196", "a", 1)])
    assert split.user_ids == ("196", "u")
    assert split.user_keys().tolist() == [0x9617A421109E4A39 - 2**64, 0x3678E0C3D370E324]
    assert split.user_keys().dtype == np.int64
    assert split_of([("u", "b", 1)]).user_keys().tolist() == [0x3678E0C3D370E324]


def popularity_metrics(split: UserSplit, n_items: int) -> tuple[float, float]:
    """HR@10 and NDCG@10 of the most popular items, all items ranked, ties at expected rank."""
    popularity = np.bincount(split.train_items, minlength=n_items)
    positions: NDArray[np.float64] = np.empty(len(split))
    for index, test in enumerate(split.test_items):
        candidate = np.ones(n_items, dtype=bool)
        candidate[split.train_of(index)] = False
        candidate[split.validation_items[index]] = False
        assert candidate[test]
        scores = popularity[candidate]
        greater = np.count_nonzero(scores > popularity[test])
        ties = np.count_nonzero(scores == popularity[test])
        positions[index] = greater + (ties - 1) / 2
    hit = positions < 10
    return float(hit.mean()), float(np.where(hit, 1 / np.log2(positions + 2), 0).mean())


def test_popularity_on_ml_100k_has_the_reference_value(ml_100k_interactions, ml_100k_shuffled):
    catalogue = Catalogue.from_interactions(ml_100k_interactions)
    split = leave_one_out(ml_100k_interactions, catalogue)
    hit_rate, ndcg = popularity_metrics(split, len(catalogue))
    assert hit_rate == pytest.approx(0.0764, abs=5e-4)
    assert ndcg == pytest.approx(0.0389, abs=5e-4)

    again = leave_one_out(ml_100k_shuffled, Catalogue.from_interactions(ml_100k_shuffled))
    assert again.user_ids == split.user_ids
    for name in ("train_indptr", "train_items", "validation_items", "test_items"):
        np.testing.assert_array_equal(getattr(again, name), getattr(split, name))


def test_the_latest_share_of_each_history_is_held_out():
    """Of 5, 4 and 2 items in the order of time, 40 % are 2, 1 and none."""
    rows = [("a", 5), ("b", 4), ("c", 2)]
    users = [user for user, n in rows for _ in range(n)]
    items = [f"i{place}" for _, n in rows for place in range(n)]
    times = [10 * place for _, n in rows for place in range(n)]
    data = Interactions.from_arrays(users, items, times)
    catalogue = Catalogue.of([f"i{place}" for place in range(5)])
    split, held = hold_out(data, catalogue, by="ratio", share=0.4)
    assert held.indptr.tolist() == [0, 2, 3, 3]
    assert held.items.tolist() == [3, 4, 3]
    assert split.test_items.tolist() == [3, 3, -1]
    assert split.validation_items.tolist() == [2, 2, -1]
    assert [split.train_of(user).tolist() for user in range(3)] == [[0, 1], [0, 1], [0, 1]]
    assert held.select(np.array([False, True, True])).items.tolist() == [3]
    plain, last = hold_out(data, catalogue)
    assert last.items.tolist() == plain.test_items[:2].tolist() == [4, 3]
    with pytest.raises(DataError, match=r"share is 1\.0"):
        hold_out(data, catalogue, by="ratio", share=1.0)
    with pytest.raises(DataError, match=r"share is '0\.4'"):
        hold_out(data, catalogue, by="ratio", share="0.4")
    with pytest.raises(DataError, match=r"by is 'share'\. Choose among last, ratio, time"):
        hold_out(data, catalogue, by="share")
    with pytest.raises(DataError, match=r"catalogue is of type str\. Use Catalogue\.from_"):
        hold_out(data, "ratio")
    with pytest.raises(DataError, match=r"interactions is of type list\. .*from_frame"):
        leave_one_out([], catalogue)


def test_everything_from_one_time_on_is_held_out():
    """The latest 40 % of eleven begin at time 8: two test items of a, and one of b.

    c has one item before them and so no test item: its later one is left out. d only comes later.
    """
    history = {"a": [0, 1, 2, 8, 9], "b": [3, 4, 8], "c": [5, 9], "d": [9]}
    users = [user for user, times in history.items() for _ in times]
    times = [time for found in history.values() for time in found]
    data = Interactions.from_arrays(users, [f"i{time}" for time in times], times)
    catalogue = Catalogue.of([f"i{time}" for time in range(10)])
    split, held = hold_out(data, catalogue, by="time", share=0.4)
    assert split.user_ids == ("a", "b", "c")
    assert held.indptr.tolist() == [0, 2, 3, 3]
    assert held.items.tolist() == [8, 9, 8]
    assert split.test_items.tolist() == [8, 8, -1]
    assert split.validation_items.tolist() == [2, 4, -1]
    assert [split.train_of(user).tolist() for user in range(3)] == [[0, 1], [3], [5]]
    timeless = Interactions.from_arrays(["a", "a", "a"], ["i0", "i1", "i2"])
    with pytest.raises(DataError, match="have no time"):
        hold_out(timeless, catalogue, by="time")


def test_many_users_lie_in_files_of_neighbours_until_nothing_needs_them(tmp_path, monkeypatch):
    each = [0, 3, 0, 0, 5, 1, 2, 0, 4, 300, 0]
    users = UserSplit(
        user_ids=tuple(map(str, range(len(each)))),
        train_indptr=np.cumsum([0, *each]),
        train_items=np.concatenate([np.arange(n) for n in each]),
        validation_items=np.full(len(each), -1),
        test_items=np.full(len(each), -1),
    )
    killed = tmp_path / "runs" / "fedrec-users-killed00"
    for most in (100_000, 2):
        killed.mkdir(parents=True)
        (killed / "lock").touch()
        # One digest reads several parts.
        monkeypatch.setattr(ids, "_VALUES_AT_ONCE", 100)
        monkeypatch.setattr(splits, "MOST_FILE_USERS", most)
        stored = users.in_files(tmp_path / "runs")
        assert not killed.exists()
        assert (stored is users) == (most > len(each))
    found, held = stored.train_items, users.train_items
    del stored
    (folder,) = (tmp_path / "runs").iterdir()
    # An item takes a byte, except among 300 items.
    about = [path.stat() for path in sorted(folder.glob("*.items"))]
    assert [file.st_size for file in about] == [3, 0, 6, 2, 608, 0]
    assert not any(file.st_mode & 0o077 for file in about)
    for begin, end in combinations_with_replacement([0, 1, 3, 4, 9, 10, 11, 314, 315], 2):
        assert np.array_equal(found[begin:end], held[begin:end])
    some = np.random.default_rng(0).integers(0, len(held), 50)
    assert np.array_equal(found[some], held[some])
    assert found[some].dtype == held.dtype == np.asarray(found).dtype
    assert digest("items", found) == digest("items", held) == digest("items", held.tobytes())
    assert np.array_equal(found[held > 2], held[held > 2]) and found[-1] == held[-1]
    assert np.array_equal(found[::-7], held[::-7]) and np.array_equal(found > 2, held > 2)
    with pytest.raises(IndexError):
        found[[0, len(held)]]
    os.truncate(folder / "00002.items", 5)
    (folder / "00004.items").unlink()
    for place in (4, 12):
        with pytest.raises(StorageError, match=r"0000[24]\.items can't be read.*--resume"):
            found[place]
    del found
    gc.collect()
    assert not any((tmp_path / "runs").iterdir())
