"""Every layout, its detection, and rows that cannot be used."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from fedrec.data import READERS, Interactions, Reading, read_interactions
from fedrec.errors import DataError

SAME_DATA = {
    "u.data": ("u.data", "1\t10\t5\t100\n2\t20\t3\t200\n"),
    "ratings.dat": ("ratings.dat", "1::10::5::100\n2::20::3::200\n"),
    "ratings.csv": ("ratings.csv", "userId,movieId,rating,timestamp\n1,10,5.0,100\n2,20,3.0,200\n"),
    "amazon": ("video.csv", "1,10,5.0,100\n2,20,3.0,200\n"),
    "inter": (
        "toy.inter",
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t10\t5\t100\n2\t20\t3\t200\n",
    ),
    "csv": ("toy.csv", 'time,item,user\n100,10,1\n200,"20",2\n'),
    "ratings.txt": ("ratings.txt", "1 10 5\n2 20 3.5\n"),
    "table": ("video.csv", "100;1;10\n200;2;20\n"),
    "jsonl": (
        "toy.jsonl",
        '{"user": 1, "item": "10", "time": 100}\n{"item": 20, "user": "2", "time": "200"}\n',
    ),
}


def _named(layout: str) -> Reading:
    """Return what has to be said of a file without a header, whose columns are never guessed."""
    if layout == "table":
        return Reading(columns="timestamp,user,item")
    return Reading(layout="amazon" if layout == "amazon" else None)


def columns(interactions: Interactions) -> tuple[list[str], list[str], list[int] | None]:
    times = interactions.timestamps
    return (
        interactions.user_ids.tolist(),
        interactions.item_ids.tolist(),
        None if times is None else times.tolist(),
    )


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("layout", SAME_DATA)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_layouts_read_the_same_data(tmp_path, layout, ends, mark):
    name, text = SAME_DATA[layout]
    path = write(tmp_path, name, mark + text.replace("\n", ends).encode())
    interactions, report = read_interactions(path, _named(layout))
    times = None if layout == "ratings.txt" else [100, 200]
    assert columns(interactions) == (["1", "2"], ["10", "20"], times)
    assert (report.layout, report.n_rows, report.n_bad) == (layout, 2, 0)
    assert report.n_missing_timestamps == (2 if times is None else 0)


@pytest.mark.parametrize("name", ["visits.txt", "my-ratings.txt", "ratings.txt.csv"])
def test_three_numbers_are_ratings_only_under_the_name_of_filmtrust(tmp_path, name):
    path = write(tmp_path, name, "1 2 1700000000\n1 3 1700000001\n")
    with pytest.raises(DataError, match="does not look like a header") as caught:
        read_interactions(path)
    assert caught.value.options == {"columns": "user,item,timestamp"}
    found, _ = read_interactions(path, Reading(columns="user,item,timestamp"))
    assert columns(found) == (["1", "1"], ["2", "3"], [1700000000, 1700000001])


def test_every_layout_is_tested():
    assert set(SAME_DATA) | {"parquet"} == set(READERS)


def test_named_columns(tmp_path):
    path = write(tmp_path, "clicks.csv", "who,what,when,user\na,x,5,z\n")
    interactions, _ = read_interactions(
        path, Reading(user_column="who", item_column="what", timestamp_column="when")
    )
    assert columns(interactions) == (["a"], ["x"], [5])


@pytest.mark.parametrize(
    ("header", "reading", "wanted"),
    [
        ("user,date", Reading(item_column="date", timestamp_format="none"), ("5", None)),
        ("user,date", Reading(item_column="date"), ("5", None)),
        ("user,rating,timestamp", Reading(item_column="rating"), ("5", [7])),
        ("user,item,rating", Reading(timestamp_column="rating"), ("5", [7])),
        (
            "user,item,date",
            Reading(rating_column="date", timestamp_column="date", timestamp_format="none"),
            ("5", None),
        ),
    ],
)
def test_a_column_named_for_one_role_is_found_for_no_other(tmp_path, header, reading, wanted):
    path = write(tmp_path, "toy.csv", f"{header}\n{'a,5,7'[: 2 * len(header.split(',')) - 1]}\n")
    assert columns(read_interactions(path, reading)[0])[1:] == ([wanted[0]], wanted[1])


def test_the_columns_of_inter_can_be_named(tmp_path):
    path = write(tmp_path, "toy.inter", "who:token\titem_id:token\nann\tx\n")
    assert columns(read_interactions(path, Reading(user_column="who"))[0]) == (["ann"], ["x"], None)


@pytest.mark.parametrize(
    ("header", "names", "message"),
    [
        ("a,b", {}, "no column for the user .* no column for the item"),
        ("user,b", {"item_column": "c"}, "no column 'c' for the item"),
        ("user,item", {"timestamp_column": "t"}, "no column 't' for the time"),
        ("user,user,item", {}, "the column 'user' twice"),
        ("a,b", {"user_column": "a", "item_column": "a"}, "'a' was named as the user and as the i"),
        ("user,item", {"item_column": "user"}, "'user' was named as the user and as the item"),
        ("user,item,a", {"rating_column": "a", "timestamp_column": "a"}, "rating and as the time"),
    ],
)
def test_missing_columns_are_named(tmp_path, header, names, message):
    path = write(tmp_path, "toy.csv", header + "\n1,2\n")
    with pytest.raises(DataError, match=message) as caught:
        read_interactions(path, Reading(**names))  # type: ignore[arg-type]
    assert "user_column" in caught.value.remedy


@pytest.mark.parametrize("layout", ["u.data", "table"])
def test_column_names_without_a_header_are_refused(tmp_path, layout):
    path = write(tmp_path, *SAME_DATA["u.data"])
    columns = "user,item,rating,timestamp" if layout == "table" else None
    with pytest.raises(DataError, match="support --user-column"):
        read_interactions(path, Reading(layout=layout, columns=columns, user_column="user"))


BAD_ROWS = (
    "user,item,timestamp\n"  # line 1
    "a,x,1\n"
    "a,y\n"  # 3: two fields
    ",x,1\n"  # 4: no user
    "a, ,1\n"  # 5: no item
    "a,NaN,1\n"  # 6
    "a,y,soon\n"  # 7
    "a,y,nan\n"  # 8: a time that is missing
    "a,y,-5\n"  # 9
    "\n"  # blank lines are no rows
    "a,z,\n"  # 11: a missing time is allowed
    "a,w,1_0\n"  # 12
    "a,v,7.9\n"  # 13: cut to 7
    "a,q,1e400\n"  # 14
)


def test_bad_rows_are_left_out_and_reported(tmp_path):
    interactions, report = read_interactions(write(tmp_path, "toy.csv", BAD_ROWS))
    assert columns(interactions) == (["a"] * 4, ["x", "y", "z", "v"], [1, -1, -1, 7])
    assert [bad.line for bad in report.bad_rows] == [3, 4, 5, 6, 7, 9, 12, 14]
    assert (report.n_rows, report.n_bad, report.n_without_id) == (12, 8, 3)
    assert report.left_out == "8 of 12 rows were left out (3 without a user or an item)"
    assert (report.n_missing_timestamps, report.n_rounded_timestamps) == (2, 1)
    assert report.bad_rows[0].reason == "2 fields, expected 3"
    assert (
        report.bad_rows[4].reason == "the time is 'soon', expected a number from 0 or an ISO date"
    )


def test_strict_reading_names_the_bad_lines(tmp_path):
    with pytest.raises(DataError, match=r"8 of 12 rows are bad\. Line 3: 2 fields") as caught:
        read_interactions(write(tmp_path, "toy.csv", BAD_ROWS), Reading(strict=True))
    assert "omit --strict" in caught.value.remedy


def test_twenty_bad_rows_are_listed_and_all_counted(tmp_path):
    text = "1\t2\t3\t4\n" + "oops\n" * 50
    _, report = read_interactions(write(tmp_path, "u.data", text))
    assert report.n_bad == 50
    assert [bad.line for bad in report.bad_rows] == list(range(2, 22))


def test_a_field_beyond_the_limit_of_csv_is_a_bad_row(tmp_path):
    text = "user,item\na,x\nb," + "y" * 200_000 + "\nc,z\n"
    interactions, report = read_interactions(write(tmp_path, "toy.csv", text))
    assert interactions.user_ids.tolist() == ["a", "c"]
    assert "limit" in report.bad_rows[0].reason


def test_a_file_of_bad_rows_only_is_refused(tmp_path):
    path = write(tmp_path, "u.data", "1\t2\t3\tyesterday\n")
    with pytest.raises(DataError, match="1 of 1 rows are bad"):
        read_interactions(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("u.data", b"", "is empty"),
        ("toy.csv", b"user,item\n", "has no rows"),
        ("notes.md", b"hello there\n", "layout of .*notes.md is unknown. .*'hello there'"),
        ("a.zip", b"PK\x03\x04...", "is a zip archive"),
        ("a.json", b"[1,\n2]", "Expected JSON lines"),
        ("toy.csv", b"1,2,5.0,100\n", "is unknown. .* not look like a header"),
        ("blank.csv", b"\n \n", "is unknown"),
        ("u.data", b"1\t2\t3\t\xff\n", "not UTF-8"),
        ("toy.parquet", b"PAR2 no", "cannot be read as Parquet"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message) as caught:
        read_interactions(write(tmp_path, name, content))
    assert name in str(caught.value)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(DataError, match="not there"):
        read_interactions(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="is a folder"):
        read_interactions(tmp_path)


def test_an_unknown_layout_lists_the_known(tmp_path):
    with pytest.raises(DataError, match="'xml' is unknown") as caught:
        read_interactions(write(tmp_path, *SAME_DATA["csv"]), Reading(layout="xml"))
    assert "inter" in caught.value.remedy


def test_parquet(tmp_path):
    table = arrow.table(
        {
            "user_id": arrow.array([1, 2, None, 3]),
            "item_id": arrow.array(["x", "y", "x", None]).dictionary_encode(),
            "extra": [0, 0, 0, 0],
            "timestamp": arrow.array([5, None, 7, 8], arrow.timestamp("s")),
        }
    )
    parquet.write_table(table, tmp_path / "toy.parquet")
    interactions, report = read_interactions(tmp_path / "toy.parquet")
    assert columns(interactions) == (["1", "2"], ["x", "y"], [5_000_000, -1])
    assert [bad.line for bad in report.bad_rows] == [3, 4]


def test_parquet_with_ids_that_became_floats(tmp_path):
    table = arrow.table({"u": [1.0, float("nan"), 2.5], "i": ["x", "y", "z"], "t": [1.0, 2.0, 3.0]})
    parquet.write_table(table, tmp_path / "toy.parquet")
    interactions, report = read_interactions(
        tmp_path / "toy.parquet", Reading(user_column="u", item_column="i", timestamp_column="t")
    )
    assert columns(interactions) == (["1"], ["x"], [1])
    assert report.n_bad == 2


def test_parquet_columns_of_another_type_are_refused(tmp_path):
    parquet.write_table(arrow.table({"user": [True], "item": ["x"]}), tmp_path / "toy.parquet")
    with pytest.raises(DataError, match="'user' has the type bool"):
        read_interactions(tmp_path / "toy.parquet")


def test_parquet_ratings_of_any_type_are_ignored_without_a_minimum(tmp_path):
    path = tmp_path / "ratings.parquet"
    table = {"user_id": ["a", "b"], "item_id": ["x", "y"], "rating": [Decimal("3.5"), Decimal(4)]}
    parquet.write_table(arrow.table(table), path)
    assert len(read_interactions(path)[0]) == 2
    with pytest.raises(DataError, match="'rating' has the type decimal"):
        read_interactions(path, Reading(minimum_rating=4))


def test_parquet_dates_beyond_python_leave_their_column_unread_or_in_order(tmp_path):
    """Databases write infinity as the last microsecond that fits, in the year 294247."""
    last = 2**63 - 1
    days = arrow.array([0, last, 5], arrow.timestamp("us"))
    table = {"who": ["ann", "ann", "bob"], "item": ["x", "y", "x"], "until": days}
    path = tmp_path / "toy.parquet"
    parquet.write_table(arrow.table(table), path)
    with pytest.raises(DataError, match="no column for the user"):
        read_interactions(path)
    reading = Reading(user_column="who", timestamp_column="until")
    assert columns(read_interactions(path, reading)[0])[2] == [0, last, 5]


def test_parquet_without_timestamps(tmp_path):
    parquet.write_table(arrow.table({"user": ["a"], "item": ["x"]}), tmp_path / "toy.parquet")
    assert columns(read_interactions(tmp_path / "toy.parquet")[0]) == (["a"], ["x"], None)


def test_ml_100k_has_its_published_size(ml_100k):
    interactions, report = ml_100k.read()
    assert (interactions.n_users, interactions.n_items, len(interactions)) == (943, 1682, 100_000)
    assert (report.layout, report.n_bad, report.n_missing_timestamps) == ("inter", 0, 0)
