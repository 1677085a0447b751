"""Every row of a file is kept, or left out with a count and a reason, however the file is read."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrec.data import Reading, ReadReport, read_interactions
from fedrec.errors import DataError

Row = tuple[str, str, int]

NOTHING = ["", " ", "nan", "NaN", "NA", "NULL", "null", "None", "\\N"]


def read(path: Path, **options: object) -> tuple[list[Row], ReadReport]:
    """Read a file whose rows have to add up."""
    found, report = read_interactions(path, Reading(**options))  # type: ignore[arg-type]
    assert report.n_rows == len(found) + report.n_bad + report.n_below_rating
    times = found.times().tolist()
    rows = zip(found.user_ids.tolist(), found.item_ids.tolist(), times, strict=True)
    return list(rows), report


def as_text(rows: list[list[str]], separator: str) -> str:
    return "".join(separator.join(row) + "\n" for row in rows)


def write_text(path: Path, rows: list[list[str]]) -> Path:
    path.write_text(as_text(rows, ","), encoding="utf-8")
    return path


def write_gzip(path: Path, rows: list[list[str]]) -> Path:
    path.write_bytes(gzip.compress(as_text(rows, "::").encode()))
    return path


def write_json(path: Path, rows: list[list[str]]) -> Path:
    header, *body = rows
    objects = (json.dumps(dict(zip(header, row, strict=True))) for row in body)
    path.write_text("".join(f"{each}\n" for each in objects), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[list[str]]) -> Path:
    header, *body = rows
    columns = {name: [row[place] for row in body] for place, name in enumerate(header)}
    parquet.write_table(arrow.table(columns), path)
    return path


WRITERS = [write_text, write_gzip, write_json, write_parquet]


@pytest.mark.parametrize("chunk_rows", [2, 4096])
@pytest.mark.parametrize("separator", ["\t", "|", "::"])
def test_quotation_marks_are_text_where_nothing_is_quoted(
    tmp_path, separator, chunk_rows, monkeypatch
):
    monkeypatch.setattr("fedrec.data.delimited.CHUNK_ROWS", chunk_rows)
    rows = [["u1", "i1", "plain"], ["u2", '"i2', "b"], ['"u3', "i3", "c"], ["u4", "i4", '"d']]
    rows += [["u5", "i5", 'e"'], ["u6", '"i6"', '5" disk']]
    path = tmp_path / "v.txt"
    path.write_text(as_text([["user", "item", "title"], *rows], separator))
    found, _ = read(path, strict=True)
    assert [list(row[:2]) for row in found] == [row[:2] for row in rows]
    path.write_text(as_text(rows, separator))
    assert read(path, strict=True, columns="user,item,-")[0] == found


@pytest.mark.parametrize("separator", ["\t", "|", "::"])
@pytest.mark.parametrize("header", [True, False])
def test_a_file_whose_every_text_is_quoted_is_asked_about(tmp_path, separator, header):
    inner = f'"a {separator} ""b"""'
    rows = [["1", '"x"', "NA", "2021-01-01"]] * 2 + [["2", inner, "5", "2021-01-02"]]
    path = tmp_path / "v.txt"
    top = [['"user"', '"item"', '"rating"', '"time"']] if header else []
    path.write_text(as_text(top + rows, separator))
    seen = {} if header else {"columns": "user,item,rating,timestamp"}
    with pytest.raises(DataError, match="is in quotation marks") as error:
        read_interactions(path, Reading(**seen))
    assert "--quotes (data.quotes) = fields" in error.value.remedy
    assert "--quotes (data.quotes) = none" in error.value.remedy
    assert error.value.options == {}
    found, _ = read(path, quotes="fields", **seen)
    assert [row[:2] for row in found] == [("1", "x")] * 2 + [("2", f'a {separator} "b"')]
    found, report = read(path, quotes="none", **seen)
    assert [row[:2] for row in found] == [("1", '"x"')] * 2
    assert [bad.reason for bad in report.bad_rows] == ["5 fields, expected 4"]
    # One text without marks is enough to know that they mean nothing.
    path.write_text(as_text([*top, *rows, ["3", "y", "1", "2021-01-01"]], separator))
    assert len(read(path, **seen)[0]) == 3


def test_numbers_under_a_quoted_header_between_tabs(tmp_path):
    path = tmp_path / "v.tsv"
    path.write_text('"user"\t"item"\n1\t2\n"user"\t"item"\n3\t4\n')
    found, report = read(path)
    assert [row[:2] for row in found] == [("1", "2"), ("3", "4")]
    assert (report.columns.user, report.n_headers) == ("user", 1)


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("second", ['y"', '"y', None])
@pytest.mark.parametrize("chunk_rows", [2, 3, 4096])
def test_a_field_that_spans_lines_is_refused_with_its_line(
    tmp_path, separator, place, second, chunk_rows, monkeypatch
):
    monkeypatch.setattr("fedrec.data.delimited.CHUNK_ROWS", chunk_rows)
    rows = [[f"u{n}", f"i{n}", f"t{n}"] for n in range(9)]
    rows[3][place] = '"open'
    if second is not None:
        rows[6][place] = second
    path = tmp_path / "v.csv"
    for top in ([["user", "item", "title"]], []):
        path.write_text(as_text(top + rows, separator))
        seen = {} if top else {"columns": "user,item,-"}
        with pytest.raises(DataError, match=f"line {4 + len(top)}, has a quotation mark") as error:
            read(path, **seen)
        assert "--quotes (data.quotes) = none" in error.value.remedy
        assert len(read(path, quotes="none", **seen)[0]) == 9
    if second is None:
        with pytest.raises(DataError, match="line 4, has a quotation mark"):
            read(path, quotes="lines", **seen)


def test_an_open_quotation_mark_in_a_header_or_in_the_last_line(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text('user,item,"title\na,x,b\n')
    with pytest.raises(DataError, match="line 1, has a quotation mark"):
        read(path)
    path.write_text('user,item,title\na,x,b\nb,y,"c\n')
    with pytest.raises(DataError, match="line 3, has a quotation mark"):
        read(path)


def test_fields_with_line_breaks_are_read_where_that_was_said(tmp_path):
    path = tmp_path / "v.csv"
    rows = [["user", "item", "review"], ["a", "x", 'good\nvery "good"\n'], ["b", "y", "bad"]]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert [row[:2] for row in read(path, quotes="lines")[0]] == [("a", "x"), ("b", "y")]
    with pytest.raises(DataError, match="quotes is 'yes'"):
        Reading(quotes="yes")
    path.write_text("user item\na x\n")
    with pytest.raises(DataError, match="fields are separated by white space"):
        read(path, quotes="fields")


@pytest.mark.parametrize("write", WRITERS)
def test_words_for_nothing_are_no_users_items_or_times(tmp_path, write):
    rows = [["user", "item", "timestamp"], ["a", "x", "1"], ["na", "none", "2"]]
    rows += [[word, "x", "3"] for word in NOTHING] + [["a", word, "3"] for word in NOTHING]
    rows += [["NA", "NULL", "3"]] + [["b", "y", word] for word in NOTHING]
    found, report = read(write(tmp_path / "v", rows))
    assert found == [("a", "x", 1), ("na", "none", 2)] + [("b", "y", -1)] * len(NOTHING)
    assert report.n_bad == report.n_without_id == 2 * len(NOTHING) + 1
    assert report.n_missing_timestamps == len(NOTHING)
    first = next(bad for bad in report.bad_rows if "'NA'" in bad.reason)
    assert first.reason == "the user's id is 'NA'"
    with pytest.raises(DataError, match="19 of 30 rows are bad"):
        read(tmp_path / "v", strict=True)


def test_nulls_and_nans_of_typed_files(tmp_path):
    nan = float("nan")
    table = {"user": [1.0, None, nan, 2.0], "item": ["x"] * 4, "timestamp": [5.0, 1.0, 1.0, nan]}
    parquet.write_table(arrow.table(table), tmp_path / "v.parquet")
    objects = "".join(
        f'{{"user": {user}, "item": "x", "timestamp": {time}}}\n'
        for user, time in [("1.0", "5"), ("null", "1"), ("NaN", "1"), ("2", "NaN")]
    )
    (tmp_path / "v.jsonl").write_text(objects)
    for name in ("v.parquet", "v.jsonl"):
        found, report = read(tmp_path / name)
        assert found == [("1", "x", 5), ("2", "x", -1)]
        assert (report.n_bad, report.n_without_id) == (2, 2)


def test_ratings_that_are_missing_are_bad_where_ratings_count(tmp_path):
    rows = [["a", f"i{n}", word] for n, word in enumerate(["5", "1", *NOTHING])]
    path = write_text(tmp_path / "v.csv", [["user", "item", "rating"], *rows])
    assert len(read(path)[0]) == len(rows)
    found, report = read(path, minimum_rating=4)
    assert (len(found), report.n_below_rating, report.n_bad) == (1, 1, len(NOTHING))
    assert report.n_without_id == 0


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("with_times", [True, False])
def test_a_header_that_comes_again_is_left_out(tmp_path, write, with_times):
    header = ["user", "item", "shop"] + ["timestamp"] * with_times
    body = [["a", "x", "s", "1"], ["user", "y", "s", "2"], ["c", "item", "s", "3"]]
    body = [row[: len(header)] for row in body]
    path = write(tmp_path / "v", [header, *body, header, *body, header])
    found, report = read(path)
    assert [row[:2] for row in found] == [("a", "x"), ("user", "y"), ("c", "item")] * 2
    assert (report.n_rows, report.n_bad, report.n_headers) == (8, 2, 2)
    assert report.left_out == "2 of 8 rows were left out (2 the header)"
    assert {bad.reason for bad in report.bad_rows} == {"the header again"}
    with pytest.raises(DataError, match=r"2 of 8 rows are bad\. Line \d: the header again"):
        read(path, strict=True)


def test_a_row_of_a_user_and_an_item_called_like_their_columns_is_kept(tmp_path):
    path = write_text(tmp_path / "v.csv", [["user", "item", "time"], ["user", "item", "5"]])
    assert read(path)[0] == [("user", "item", 5)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
@pytest.mark.parametrize("separator", [",", "\t", "::", " "])
def test_files_that_were_joined_with_their_marks(tmp_path, encoding, separator):
    one = as_text([["user", "item"], ["ü", "x"], ["b", "y"]], separator).encode(encoding)
    path = tmp_path / "v.txt"
    path.write_bytes(one + one)
    seen = {} if "-le" not in encoding and encoding != "latin-1" else {"encoding": encoding}
    found, report = read(path, **seen)
    assert [row[:2] for row in found] == [("ü", "x"), ("b", "y")] * 2
    assert (report.n_bad, report.n_headers) == (1, 1)


def test_a_mark_in_front_of_an_id_is_no_part_of_it(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("\ufeffa,x\n\ufeffa,y\n", encoding="utf-8")
    assert [row[0] for row in read(path, columns="user,item")[0]] == ["a", "a"]
    (tmp_path / "v.jsonl").write_text('{"user": 1, "item": 2}\n\ufeff{"user": 1, "item": 3}\n')
    assert len(read(tmp_path / "v.jsonl", strict=True)[0]) == 2


@pytest.mark.parametrize(
    ("n_guest", "n_users", "expected"),
    [
        (11, 89, ("user", "guest", 11)),
        (10, 90, None),
        (60, 8, ("user", "guest", 60)),
        (40, 8, None),
    ],
)
def test_an_id_with_many_rows_is_doubted(tmp_path, n_guest, n_users, expected):
    others = 89 if n_guest == 11 else 100 - n_guest
    users = ["guest"] * n_guest + [f"u{n % n_users}" for n in range(others)]
    rows = [[user, f"i{n % 20}"] for n, user in enumerate(users)]
    path = write_text(tmp_path / "v.csv", [["user", "item"], *rows])
    _, report = read(path, strict=True)
    assert report.frequent == (() if expected is None else (expected,))
    if expected:
        assert f"the user 'guest' has {n_guest} of 100 rows" in next(report.doubts(named=True))
        assert "guest" not in next(report.doubts())
    swapped = write_text(tmp_path / "w.csv", [["item", "user"], *rows])
    assert bool(read(swapped)[1].frequent) == bool(expected)


def test_one_person_may_have_any_share_of_rows(tmp_path):
    rows = [["me", "again"]] * 50 + [["me", f"i{n}"] for n in range(20)]
    path = write_text(tmp_path / "v.csv", [["user", "item"], *rows])
    assert read(path)[1].frequent == ()


def test_ids_that_are_one_number_and_times_of_zero_get_a_sentence_each(tmp_path):
    rows = [["1", "a", "0"], ["1.0", "b", "1300000000"], ["2", "1.5", "0"], ["2.00", "1", "5"]]
    rows += [["3", "1", "6"], ["03", "1.0", "7"], ["x", "x.0", "8"]]
    path = write_text(tmp_path / "v.csv", [["user", "item", "time"], *rows])
    _, report = read(path, strict=True)
    assert report.written_twice == (("user", 2), ("item", 1))
    assert report.n_zero_timestamps == 2
    assert list(report.doubts()) == [
        "users written both as 1 and as 1.0, each of which counts as two: 2",
        "items written both as 1 and as 1.0, each of which counts as two: 1",
        "2 of 7 rows have the time 0, which counts as the oldest. Leave it empty if it is missing",
    ]
    # Positions from 0 are no missing times.
    rows = [["a", "x", "0"], ["a", "y", "1"], ["b", "x", "0"]]
    assert read(write_text(path, [["user", "item", "time"], *rows]))[1].n_zero_timestamps == 0


FIELDS = st.sampled_from(
    ["u1", "7", "7.0", '"', '"q"', 'a"b', '"a', 'b"', '""', "NA", "None", "", " ", "user", "ü"]
) | st.text(alphabet='ab1",;|:\t ', max_size=4)
LINES = st.lists(st.lists(FIELDS, min_size=3, max_size=3) | st.just(["user", "item", "note"]))


def naive(text: str, separator: str, quotes: str) -> tuple[list[tuple[str, str]], int, int]:
    """Return pairs kept, rows left out and rows in all, by one line after the other."""
    kept: list[tuple[str, str]] = []
    n_rows = 0
    for line in text.split("\n")[1:]:
        fields = line.split(separator)
        if quotes != "none":
            fields = next(csv.reader([line], delimiter=separator), [])
        if (len(fields) == 1 and not fields[0].strip()) or not fields:
            continue
        n_rows += 1
        missing = [field for field in fields[:2] if field.strip() in NOTHING]
        if len(fields) == 3 and not missing and fields[:2] != ["user", "item"]:
            kept.append((fields[0], fields[1]))
    return kept, n_rows - len(kept), n_rows


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=LINES,
    separator=st.sampled_from([",", ";", "\t", "|", "::"]),
    quotes=st.sampled_from([None, "none", "fields"]),
    chunk_rows=st.sampled_from([1, 3, 4096]),
)
def test_rows_add_up_whatever_is_in_their_fields(tmp_path, lines, separator, quotes, chunk_rows):
    header = ["user", "item", "note"]
    text = as_text([header, *lines, ["plain", "text", "here"]], separator)
    path = tmp_path / "v.csv"
    path.write_text(text, encoding="utf-8")
    reading = Reading(layout="csv", separator=separator, quotes=quotes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedrec.data.delimited.CHUNK_ROWS", chunk_rows)
        try:
            found, report = read_interactions(path, reading)
        except DataError as error:
            is_quoted = quotes == "fields" or (quotes is None and separator in ",;")
            assert is_quoted and "quotation mark" in str(error)
            number = int(str(error).partition("line ")[2].partition(",")[0])
            line = text.split("\n")[number - 1] + "\n"
            if separator == "::":  # csv knows no such separator
                line, separator = line.replace("::", "\x1f"), "\x1f"
            assert next(csv.reader([line], delimiter=separator))[-1].endswith("\n")
            return
    meaning = reading.quotes_between(separator)
    if meaning != "none" and separator == "::":
        return  # csv knows no such separator
    pairs = list(zip(found.user_ids.tolist(), found.item_ids.tolist(), strict=True))
    assert (pairs, report.n_bad, report.n_rows) == naive(text, separator, meaning)
