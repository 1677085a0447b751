"""Files as people have them: each is read right, or refused with line, flag and what helps."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrec.data import Interactions, Reading, read_interactions
from fedrec.data.column_kinds import Column
from fedrec.data.delimited import read_headless
from fedrec.data.times import shown_span
from fedrec.errors import DataError

ROWS = [("007", "a,b", 100), ("7", "x", 200), ("007", "ü", 300)]


def found_in(path: Path, **options: object) -> list[tuple[str, str, int]]:
    interactions, report = read_interactions(path, Reading(**options))  # type: ignore[arg-type]
    assert report.n_bad == 0, report.bad_rows
    return rows_of(interactions)


def rows_of(found: Interactions) -> list[tuple[str, str, int]]:
    times = found.times().tolist()
    return list(zip(found.user_ids.tolist(), found.item_ids.tolist(), times, strict=True))


def table(separator: str, quote: Callable[[str], str] = lambda text: text) -> str:
    header = separator.join(["user_id", "item_id", "timestamp"])
    body = (separator.join([user, quote(item), str(time)]) for user, item, time in ROWS)
    return "\n".join([header, *body]) + "\n"


@pytest.mark.parametrize("separator", ["\t", ";", "|", "::"])
def test_any_separator_under_a_header(tmp_path, separator):
    path = tmp_path / "visits.txt"
    path.write_text(table(separator), encoding="utf-8")
    assert found_in(path) == ROWS


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_separator_in_quotation_marks_is_no_separator(tmp_path, separator):
    path = tmp_path / "visits.csv"
    text = table(separator, lambda item: f'"{item}"').replace("x", f"x{separator}y")
    path.write_text(text, encoding="utf-8")
    assert [row[1] for row in found_in(path)] == ["a,b", f"x{separator}y", "ü"]


@pytest.mark.parametrize("name", ["v.csv.gz", "v.csv.bz2", "v.csv.xz", "v.csv", "v"])
@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_whatever_the_name(tmp_path, name, packed):
    path = tmp_path / name
    path.write_bytes(packed(table(";").encode()))
    assert found_in(path) == ROWS


def test_the_name_inside_a_compressed_one_counts(tmp_path):
    path = tmp_path / "u.data.gz"
    path.write_bytes(gzip.compress(b"1\t2\t5\t100\n"))
    interactions, report = read_interactions(path)
    assert (report.layout, rows_of(interactions)) == ("u.data", [("1", "2", 100)])


@pytest.mark.parametrize("kept", [0.5, 0.95])
def test_a_compressed_file_that_is_cut_off(tmp_path, kept):
    whole = gzip.compress(b"user,item\n" + b"".join(b"u%d,i%d\n" % (n, n * n) for n in range(9999)))
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(
        DataError, match=r"cut\.csv\.gz is damaged or cut off: .* line \d+"
    ) as error:
        read_interactions(path)
    assert "gzip -t" in error.value.remedy


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_marks_say_the_encoding(tmp_path, encoding):
    path = tmp_path / "v.csv"
    path.write_bytes(table(";").encode(encoding))
    assert found_in(path) == ROWS


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16-le", "utf-16-be"])
def test_other_encodings_are_refused_with_the_flag_and_read_when_named(tmp_path, encoding):
    path = tmp_path / "v.csv"
    path.write_bytes(table(";").encode(encoding))
    with pytest.raises(DataError) as error:
        read_interactions(path)
    assert "--encoding (data.encoding)" in error.value.remedy
    if not encoding.startswith("utf"):
        assert "line 4 has the byte 0xfc" in error.value.message
    assert found_in(path, encoding=encoding) == ROWS
    assert len(found_in(path, **error.value.options)) == len(ROWS)


def test_binary_files_are_no_tables(tmp_path):
    path = tmp_path / "v.csv"
    path.write_bytes(b"\x7fELF\x00\x01\x02" * 50)
    with pytest.raises(DataError, match="not a table of text"):
        read_interactions(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside.csv", table(";"))
    with pytest.raises(DataError, match="zip archive") as error:
        read_interactions(path)
    assert f"python3 -m zipfile -e {path} FOLDER" in error.value.remedy


def test_a_few_numbers_count_rows_only_from_0_or_1():
    rows = [
        Column(place=0, name="", values=[str(n + first) for n in range(5)]) for first in (0, 1, 7)
    ]
    assert [each.is_row_number for each in rows] == [True, True, True]
    assert [each.is_unique for each in rows] == [True, True, False]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [";", "::"])
def test_line_ends(tmp_path, ends, separator):
    path = tmp_path / "v.csv"
    path.write_bytes(table(separator).replace("\n", ends).encode())
    assert found_in(path) == ROWS


def test_names_of_columns_in_any_case_and_order(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("Timestamp,MovieID,Rating,UserID\n5,m,1,u\n")
    assert found_in(path) == [("u", "m", 5)]


@pytest.mark.parametrize("columns", ["user", "user,itm", "user,item,user", "user,item,", ""])
def test_columns_that_mean_nothing(columns):
    with pytest.raises(DataError, match="columns is"):
        Reading(columns=columns)


@pytest.mark.parametrize("separator", ["", ", ", '"', "x", "\n"])
def test_separators_that_mean_nothing(separator):
    with pytest.raises(DataError, match="separator is"):
        Reading(separator=separator)


def test_named_columns_that_two_separators_fit(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("a,x;1\nb,y;2\n")
    with pytest.raises(DataError, match="split in several ways") as caught:
        read_interactions(path, Reading(columns="user,item"))
    assert {each["separator"] for each in caught.value.readings} == {"comma", "semicolon"}


def test_nothing_that_was_said_is_ignored(tmp_path):
    path = tmp_path / "u.data"
    path.write_text("1\t2\t3\t4\n")
    for option in ({"separator": "comma"}, {"columns": "user,item"}, {"rating_column": "r"}):
        with pytest.raises(DataError, match=f"support --{next(iter(option)).split('_')[0]}"):
            read_interactions(path, Reading(layout="u.data", **option))


def test_rows_of_json_that_are_none(tmp_path):
    path = tmp_path / "v.jsonl"
    path.write_text(
        '{"user_id": 7, "item_id": "x"}\n'
        "\n"
        '{"user_id": "007", "item_id": 1.0}\n'
        '{"user_id": null, "item_id": "x"}\n'
        '{"user_id": true, "item_id": "x"}\n'
        '{"user_id": "a", "item_id": 1.5}\n'
        '{"user_id": "a"\n'
        "[1]\n"
    )
    interactions, report = read_interactions(path)
    assert rows_of(interactions) == [("7", "x", -1), ("007", "1", -1)]
    assert [bad.line for bad in report.bad_rows] == [4, 5, 6, 7, 8]
    assert report.bad_rows[0].reason == "the user's id is None"


def test_a_minimum_of_ratings(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text(
        "user;item;rating\na;w;4\na;x;3,5\na;y;4,5\na;z;\nb;v;nan\nb;w;good\nb;x; 5 \nb;y;-1\n"
    )
    interactions, report = read_interactions(path, Reading(minimum_rating=4))
    assert rows_of(interactions) == [("a", "w", -1), ("a", "y", -1), ("b", "x", -1)]
    assert report.n_below_rating == 2
    assert [bad.line for bad in report.bad_rows] == [5, 6, 7]
    assert report.bad_rows[1].reason == "the rating is 'nan', expected a number"
    everything, _ = read_interactions(path)
    assert len(everything) == 8
    with pytest.raises(DataError, match=r"None of the 8 rows .* 9 or more") as error:
        read_interactions(path, Reading(minimum_rating=9))
    assert error.value.options == {"minimum_rating": None}


SECOND, MICRO = 1_609_495_200, 1_609_495_200_000_000  # 2021-01-01T10:00:00Z


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["1609495200", "0", ""], [SECOND, 0, -1]),
        (["1609495200000", "1609495200001"], [SECOND * 1000, SECOND * 1000 + 1]),
        (["1.6094952e9", "1609495200.9"], [SECOND, SECOND]),
        (["2021-01-01T10:00:00", "2021-01-01", ""], [MICRO, MICRO - 36_000_000_000, -1]),
        (["2021-01-01 12:00:00+02:00", "2021-01-01T10:00:00Z"], [MICRO, MICRO]),
        (["2021-01-01T10:00:00.000001"], [MICRO + 1]),
    ],
)
def test_times(tmp_path, written, expected):
    path = tmp_path / "v.csv"
    rows = "".join(f"u{n},x,{time}\n" for n, time in enumerate(written))
    path.write_text(f"user,item,time\n{rows}")
    assert [row[2] for row in found_in(path)] == expected


@pytest.mark.parametrize(
    ("written", "kinds", "instead"),
    [
        (["875072688", "", "1700000000000"], "line 2 has seconds .* line 4 has milli", None),
        (["1700000000000", "1700000000000000"], "milliseconds .* microseconds", None),
        (["875072688", "2021-01-01"], "seconds .* line 3 has a date without", None),
        (["2021-01-01", "2021-01-01T10:00:00Z"], "without a time zone .* with a time zone", "iso"),
    ],
)
def test_times_of_different_kinds_have_no_order(tmp_path, written, kinds, instead):
    path = tmp_path / "v.csv"
    rows = "".join(f"u{n},x,{time}\n" for n, time in enumerate(written))
    path.write_text(f"user,item,time\n{rows}")
    with pytest.raises(DataError, match=f"mixes times of different kinds: .*{kinds}") as error:
        read_interactions(path)
    assert "--timestamp-format (data.timestamp_format)" in error.value.remedy
    assert error.value.options == ({"timestamp_format": instead} if instead else {})
    if instead:
        read_interactions(path, Reading(**error.value.options))
    without, report = read_interactions(path, Reading(timestamp_format="none"))
    assert (without.timestamps, report.n_bad) == (None, 0)


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ([-1, -1], None),
        ([7, -1, 5], ("5", "7")),
        ([SECOND, 5], ("1970-01-01T00:00:05Z", "2021-01-01T10:00:00Z")),
        ([SECOND * 1000 + 999], ("2021-01-01T10:00:00Z", "2021-01-01T10:00:00Z")),
        ([MICRO, 0], ("1970-01-01T00:00:00Z", "2021-01-01T10:00:00Z")),
        ([MICRO * 1000], ("2021-01-01T10:00:00Z", "2021-01-01T10:00:00Z")),
        ([10**18 * 9], ("2255-03-14T16:00:00Z", "2255-03-14T16:00:00Z")),
    ],
)
def test_a_span_of_times_in_words(times, shown):
    found = np.array(times, dtype=np.int64)
    assert shown_span(found, are_dates=False) == shown


def test_dates_before_numbers_look_like_times():
    """A day has 86,400 s, so that the second of January of 1970 is 86,400 million microseconds."""
    found = np.array([-1, 0, 86_400_000_000], dtype=np.int64)
    assert shown_span(found, are_dates=True) == ("1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z")


def test_dates_in_a_form_that_was_named(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("user;item;time\na;x;01.01.2021 10:00\na;y;2021-01-01\na;z;31.12.1969 10:00\n")
    with pytest.raises(DataError, match=r"Line 2: the time is '01\.01\.2021 10:00'"):
        read_interactions(path, Reading(strict=True))
    found, report = read_interactions(path, Reading(timestamp_format="%d.%m.%Y %H:%M"))
    assert rows_of(found) == [("a", "x", MICRO)]
    assert [bad.reason for bad in report.bad_rows] == [
        "the time is '2021-01-01', expected one like %d.%m.%Y %H:%M",
        "the time is '31.12.1969 10:00', expected none before 1970",
    ]
    with pytest.raises(DataError, match="timestamp_format is 'dmy'"):
        Reading(timestamp_format="dmy")


def test_parquet_with_dates_and_zones(tmp_path):
    import datetime as dt

    when = dt.datetime(2021, 1, 1, 10, tzinfo=dt.UTC)
    columns = {
        "user": ["a", "b"],
        "item": [1, 2],
        "time": arrow.array([when, None], arrow.timestamp("s", "Europe/Paris")),
        "day": arrow.array([when.date(), when.date()]),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "v.parquet")
    path = tmp_path / "v.parquet"
    assert found_in(path, timestamp_column="time") == [("a", "1", MICRO), ("b", "2", -1)]
    assert found_in(path, timestamp_column="day")[0][2] == MICRO - 36_000_000_000


@pytest.mark.parametrize("how", ["auto", "iso", "number", "%d.%m.%Y"])
@pytest.mark.parametrize("kind", [arrow.timestamp("ms"), arrow.date32()])
def test_dates_of_parquet_have_one_unit_whenever_they_are(tmp_path, how, kind):
    """365 days of 86,400 s: the year 1971 begins 31,536,000 million microseconds after 1970."""
    path = tmp_path / "v.parquet"
    days = arrow.array([date(1971, 1, 1), date(2021, 1, 1), None]).cast(kind)
    table = {"user": ["a", "a", "a"], "item": ["x", "y", "z"], "seen": days}
    parquet.write_table(arrow.table(table), path)
    found, report = read_interactions(path, Reading(timestamp_column="seen", timestamp_format=how))
    assert found.times().tolist() == [31_536_000_000_000, MICRO - 36_000_000_000, -1]
    assert (report.has_dates, report.n_bad) == (True, 0)


def test_lines_are_counted_past_blank_ones_and_quoted_breaks(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text('user,item\n\n"a\nb",x\n\nc\nd,\n')
    interactions, report = read_interactions(path, Reading(quotes="lines"))
    assert interactions.user_ids.tolist() == ["a\nb"]
    assert [(bad.line, bad.reason) for bad in report.bad_rows] == [
        (6, "1 fields, expected 2"),
        (7, "the item's id is ''"),
    ]


def test_chunks_join_without_a_seam(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrec.data.delimited.CHUNK_ROWS", 3)
    path = tmp_path / "v.csv"
    rows = [(f"u{n % 4}", f"i{n}", n) for n in range(20)]
    body = "".join(f"{user},{item},{time}\n" for user, item, time in rows)
    path.write_text(f"user,item,time\n{body},bad,1\nu1,,2\n")
    interactions, report = read_interactions(path)
    assert rows_of(interactions) == rows
    assert [bad.line for bad in report.bad_rows] == [22, 23]


LINES = st.lists(
    st.sampled_from(["u1,i1,3\n", "u1,i2,4\n", "u2,,5\n", "u3,i1\n", '"u,4",i4,6\n', "\n"])
    | st.text(alphabet='u7,"\r\n ', max_size=9).map(lambda text: text + "\n"),
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=LINES,
    separator=st.sampled_from([",", "::"]),
    quotes=st.sampled_from(["none", "fields"]),
    ends=st.sampled_from(["\n", "\r\n"]),
)
def test_lines_without_quotes_are_read_as_the_csv_module_reads_them(
    tmp_path, lines, separator, quotes, ends
):
    """The same columns, first lines and bad rows, wherever chunks end."""
    path = tmp_path / "v.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        text = "".join(lines).replace("\n", ends) + "u9,i9,9"
        file.write(text.replace(",", separator))
    reading = Reading(encoding="utf-8", quotes=quotes)
    roles = ("user", "item", "timestamp")

    def found() -> list[tuple[object, ...]]:
        table = read_headless(path, reading, separator=separator, roles=roles)
        rows: list[tuple[object, ...]] = []
        try:
            for chunk in table.chunks:
                columns = (chunk.lines, chunk.users, chunk.items, chunk.times or [])
                rows += zip(*columns, strict=True)
                rows += ((bad.line, bad.reason) for bad in chunk.bad)
        except DataError as error:
            return [(str(error),)]
        return sorted(rows, key=str)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedrec.data.delimited.CHUNK_ROWS", 2)
        quick = found()
        patched.setattr("fedrec.data.delimited._plain_columns", lambda *args: None)
        assert quick == found()
        patched.undo()
    assert quick == found(), "and in one chunk"
