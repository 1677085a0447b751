"""Interactions from arrays, frames and sparse matrices, and back."""

from __future__ import annotations

import re
from datetime import date

import numpy as np
import pytest

from fedrec import Interactions, load_data
from fedrec.errors import DataError, SettingsError

ROWS = {
    "user_id": [196, 3, 196, 3],
    "item_id": ["a", "b", "b", "c"],
    "rating": [5.0, 1.0, 4.0, 5.0],
    "timestamp": [30, 10, 20, 40],
}


def pandas_frame(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def polars_frame(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def arrow_table(columns):
    return pytest.importorskip("pyarrow").table(columns)


@pytest.fixture(params=[pandas_frame, polars_frame, arrow_table])
def made(request):
    return request.param


def test_a_frame_of_any_library(made):
    found = Interactions.from_frame(made(ROWS))
    assert found.user_ids.tolist() == ["196", "3", "196", "3"]
    assert found.item_ids.tolist() == ["a", "b", "b", "c"]
    assert found.times().tolist() == [30, 10, 20, 40]


def test_a_frame_is_split_like_its_interactions(made):
    frame = made({"who": ["u"] * 4, **{name: ROWS[name] for name in ROWS if name != "user_id"}})
    users, items = load_data(frame, user_column="who", minimum_rating=4)
    kept = Interactions.from_frame(frame, user_column="who", minimum_rating=4)
    assert users.train_items.tolist() == load_data(kept)[0].train_items.tolist() == [1]
    assert users.user_ids == ("u",) and items.item_ids == ("a", "b", "c")
    with pytest.raises(DataError, match=r"no column for the user.*user_column"):
        load_data(frame)
    with pytest.raises(SettingsError, match="no argument 'separator'"):
        load_data(frame, separator=",")


def test_rows_below_a_rating_are_left_out(made):
    found = Interactions.from_frame(made(ROWS), minimum_rating=4)
    assert found.item_ids.tolist() == ["a", "b", "c"]


def test_columns_have_any_name(made):
    frame = made({"who": ["u"], "what": [7], "when": np.array(["1970-01-02"], "datetime64[us]")})
    found = Interactions.from_frame(
        frame, user_column="who", item_column="what", timestamp_column="when"
    )
    assert (found.user_ids[0], found.item_ids[0]) == ("u", "7")
    assert found.times().tolist() == [86_400_000_000]


def test_a_column_named_as_the_item_is_no_time(made):
    found = Interactions.from_frame(made({"user": ["u"], "date": [7]}), item_column="date")
    assert (found.item_ids[0], found.has_times) == ("7", False)


def test_points_in_time_may_have_a_zone_or_be_missing():
    pandas = pytest.importorskip("pandas")
    zoned = pandas.to_datetime(["1970-01-01T02:00:00+02:00", "1970-01-01T02:00:01+02:00"])
    frame = pandas_frame({"user": ["u", "u"], "item": ["a", "b"], "time": zoned})
    assert Interactions.from_frame(frame).times().tolist() == [0, 1_000_000]
    frame.loc[0, "time"] = pandas.NaT
    assert Interactions.from_frame(frame).times().tolist() == [-1, 1_000_000]


def test_times_may_be_dates(made):
    days = [date(1970, 1, 2), None]
    columns = {"user": ["u", "u"], "item": ["a", "b"], "date": days}
    assert Interactions.from_frame(made(columns)).times().tolist() == [86_400_000_000, -1]
    # As left by a join in pandas.
    gap = pandas_frame({**columns, "date": np.array([days[0], np.nan], dtype=object)})
    assert Interactions.from_frame(gap).times().tolist() == [86_400_000_000, -1]
    found = Interactions.from_arrays(["u", "u"], ["a", "b"], days)
    assert found.times().tolist() == [86_400_000_000, -1]
    with pytest.raises(DataError, match="times are of type dict"):
        Interactions.from_arrays(["u"], ["a"], [{}])


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"who": ["u"], "item": ["a"]}, {}, "no column for the user.*user_column"),
        ({"user": ["u"], "uid": ["u"], "item": ["a"]}, {}, "several columns .* the user"),
        ({"user": ["u"], "item": ["a"]}, {"item_column": "what"}, "no column 'what' for the item"),
        ({"user": ["u"], "item": ["a"]}, {"item_column": "user"}, "the same column, 'user'"),
        ({"user": ["u"], "item": ["a"]}, {"timestamp_column": "item"}, "the same column, 'item'"),
        ({"user": [1.5], "item": ["a"]}, {}, "values of type float, expected strings or integers"),
        ({"user": ["u", "v"], "item": ["a", None]}, {}, r"item_ids .* Row 1, .*dropna"),
        ({"user": ["u"], "item": ["a"], "time": ["noon"]}, {}, "times are of type str"),
        ({"user": ["u"], "item": ["a"]}, {"minimum_rating": 4}, "no column for the rating"),
        ({**ROWS, "rating": ["good"] * 4}, {"minimum_rating": 4}, r"minimum_rating=4: .* numbers"),
        (ROWS, {"minimum_rating": "four"}, "minimum_rating='four'"),
    ],
)
def test_errors_name_the_argument(columns, arguments, message):
    with pytest.raises(DataError, match=message):
        Interactions.from_frame(pandas_frame(columns), **arguments)


def test_columns_without_names_have_numbers():
    frame = pandas_frame(zip(*ROWS.values(), strict=True))
    found = Interactions.from_frame(frame, user_column=0, item_column="1", timestamp_column=3)
    assert found.to_pandas().equals(Interactions.from_frame(pandas_frame(ROWS)).to_pandas())
    load_data(frame, user_column=0, item_column="1", timestamp_column=3)
    with pytest.raises(DataError, match=r"no column 4 .* Its columns are 0, 1, 2, 3"):
        Interactions.from_frame(frame, user_column=0, item_column=4)


def test_other_types_than_frames_are_told_where_they_belong():
    for value in ("rows.csv", np.zeros((3, 2))):
        with pytest.raises(DataError, match=r"load_data .*from_arrays .*from_scipy"):
            Interactions.from_frame(value)
    with pytest.raises(SettingsError, match=r"Interactions\.from_arrays"):
        load_data(np.zeros((3, 2)))


def test_arrays_of_integers_become_text():
    found = Interactions.from_arrays(np.array([7, 7]), np.array([10, 9]), np.array([1.0, np.nan]))
    assert found.user_ids.tolist() == ["7", "7"]
    assert found.times().tolist() == [1, -1]
    # Equal ids share a string, as those of a file do.
    assert found.user_ids[0] is found.user_ids[1]


def test_a_sparse_matrix():
    matrix = pytest.importorskip("scipy.sparse").csr_array([[0, 2, 0], [1, 0, 0]])
    found = Interactions.from_scipy(matrix, item_ids=["a", "b", "c"])
    pairs = zip(found.user_ids, found.item_ids, strict=True)
    assert sorted(pairs) == [("0", "b"), ("1", "a")]
    assert found.timestamps is None
    with pytest.raises(DataError, match="user_ids has 3 ids, but the matrix has 2"):
        Interactions.from_scipy(matrix, user_ids=[1, 2, 3])


def test_back_to_frames():
    found = Interactions.from_frame(pandas_frame(ROWS))
    again = found.to_arrow()
    assert again.column_names == ["user_id", "item_id", "timestamp"]
    assert Interactions.from_frame(again).to_pandas().equals(found.to_pandas())


def test_interactions_are_split_like_a_file(tmp_path):
    users = [user for user in range(4) for _ in range(4)]
    found = Interactions.from_arrays(users, [*range(4)] * 4, range(16))
    file = tmp_path / "rows.csv"
    found.to_pandas().to_csv(file, index=False)
    of_file, of_frame = load_data(file), load_data(found)
    assert of_file[1].fingerprint() == of_frame[1].fingerprint()
    assert of_file[0].test_items.tolist() == of_frame[0].test_items.tolist()
    with pytest.raises(DataError, match="minimum_interactions") as error:
        load_data(found, minimum_interactions=9)
    assert "--" not in str(error.value)
    with pytest.raises(SettingsError, match=r"no argument 'user_column'.*\.from_frame"):
        load_data(found, user_column="who")


def test_errors_of_reading_a_file_name_arguments(tmp_path):
    file = tmp_path / "rows.csv"
    rows = [f"{1 + n % 7},p{n % 5},{875072688 + 100 * n}" for n in range(60)]
    file.write_text("\n".join(["customer,product,when", *rows]), encoding="utf-8")
    with pytest.raises(DataError, match="user_column") as error:
        load_data(file)
    text = str(error.value)
    assert "--" not in text
    assert "data." not in text
    call = re.search(r"As in (load_data\(.*\))\.$", text)[1]
    assert "user_column='customer', item_column='product'" in call
    users, _ = eval(call)
    assert len(users) == 7
