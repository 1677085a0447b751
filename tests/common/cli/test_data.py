"""`fedrec data` normalises, describes and deals out."""

from __future__ import annotations

import gzip
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedrec.data import Catalogue, Reading, read_interactions


def test_import_normalises_and_reports_bad_rows(fedrec, tmp_path):
    raw = tmp_path / "raw.csv"
    raw.write_text("who,what,when\nb,2,5\na,1,3\na,1,9\n,1,4\na,7,\n")
    columns = ("--user-column", "who", "--item-column", "what", "--timestamp-column", "when")
    outcome = fedrec("data", "import", raw, "--into", tmp_path / "out", *columns, "--json")
    assert outcome.code == 0
    assert outcome.json["n_bad"] == 1
    assert outcome.json["n_interactions"] == 3
    assert f"{raw}:5: the user's id is ''" in outcome.err
    text = (tmp_path / "out" / "interactions.csv").read_text().splitlines()
    assert text == ["user_id,item_id,timestamp", "a,1,9", "a,7,", "b,2,5"]
    catalogue = Catalogue.load(tmp_path / "out" / "catalogue.csv")
    assert catalogue.fingerprint() == outcome.json["catalogue_fingerprint"]
    assert fedrec("data", "import", raw, "--into", tmp_path / "s", *columns, "--strict").code == 2


def test_nothing_is_replaced_unasked(fedrec, tmp_path, interactions_file):
    again = ("data", "import", interactions_file, "--into", interactions_file.parent)
    assert "Nothing was changed" in fedrec(*again).err
    assert fedrec(*again, "--force").code == 0


def test_minimum_interactions(fedrec, tmp_path, interactions_file):
    outcome = fedrec(
        "data", "import", interactions_file, "--into", tmp_path / "x",
        "--minimum-interactions", 1000,
    )  # fmt: skip
    assert outcome.code == 2
    assert "Lower --minimum-interactions" in outcome.err


def test_describe(fedrec, interactions_file):
    found = fedrec("data", "describe", interactions_file, "--json").json
    assert (found["n_users"], found["layout"]) == (24, "csv")
    assert (found["held_out"], found["proposed"]) == ("last", {})
    assert "items with one user" in fedrec("data", "describe", interactions_file).out


DAYS = "user;item;rating;shop;when\n1;2;5;7;{}\n1;3;4;8;{}\n,3;4;8;{}\n"


def cells(out: str) -> dict[str, str]:
    """Return the rows of a table of two columns."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def test_describe_says_how_it_read_a_file_and_what_it_ignored(fedrec, tmp_path):
    path = tmp_path / "when.csv"
    path.write_text(DAYS.format(*["2024-01-01"] * 3))
    seen = fedrec("data", "describe", path)
    assert "1 of 3 rows was left out:" in seen.err
    assert seen.out.splitlines()[0] == f"{path}, read as csv with semicolons between fields"
    assert cells(seen.out) == {
        "columns": "user from user, item from item, rating from rating",
        "columns ignored": "shop, when",
        "rows": "3",
        "users": "1",
        "items": "2",
        "interactions": "2",
        "duplicate rows": "0",
        "density": "100 %",
        "interactions per user": "2 to 2, median 2",
        "items with one user": "2",
        "items with fewer than 10 users": "2",
        "times": "none",
    }
    assert "looks like times and is ignored. To read it, add --timestamp-column when" in seen.out
    found = fedrec("data", "describe", path, "--json").json
    columns = {"user": "user", "item": "item", "rating": "rating", "timestamp": None}
    assert (found["columns"], found["ignored_columns"]) == (columns, ["shop", "when"])
    assert (found["separator"], found["held_out"]) == ("semicolon", "random")
    assert (found["first_time"], found["last_time"]) == (None, None)
    assert (found["n_rows"], found["n_bad"], found["minimum_item_users"]) == (3, 1, 10)


@pytest.mark.parametrize(
    ("written", "proposed", "times"),
    [
        ("2024-01-0{}", "--timestamp-column when", "2024-01-01T00:00:00Z to 2024-01-02T00:00:00Z"),
        ("170000000{}", "--timestamp-column when", "2023-11-14T22:13:21Z to 2023-11-14T22:13:22Z"),
        (
            "2{}.12.2023 10:00", '--timestamp-column when --timestamp-format "%d.%m.%Y %H:%M"',
            "2023-12-21T10:00:00Z to 2023-12-22T10:00:00Z",
        ),
    ],
)  # fmt: skip
def test_a_column_of_times_without_a_name_is_proposed(fedrec, tmp_path, written, proposed, times):
    path = tmp_path / "when.csv"
    path.write_text(DAYS.format(*(written.format(day) for day in (1, 2, 3))))
    flags = shlex.split(proposed)
    options = dict(zip(flags[::2], flags[1::2], strict=True))
    asked = fedrec("data", "describe", path, "--json").json["proposed"]
    assert {f"--{name.replace('_', '-')}": value for name, value in asked.items()} == options
    assert cells(fedrec("data", "describe", path, *flags).out)["times"] == times
    seen = fedrec("data", "import", path, "--into", tmp_path / "out").err
    assert f"looks like times. Read it with {shlex.join(flags)}" in seen
    settings = tmp_path / "run.toml"
    settings.write_text(f'[data]\npath = "{path}"\n')
    assert 'data.timestamp_column = "when"' in fedrec("check", settings).err


@pytest.mark.parametrize(
    ("content", "flags"),
    [
        ("user,item,age\na,x,30\nb,y,40\n", ()),
        ("user,item,name\na,x,ann\nb,y,2024-01-01\n", ()),
        ("user,item,when\na,x,1/2/2024\nb,y,2/2/2024\n", ()),
        ("a,x,2024-01-01\nb,y,2024-01-02\n", ("--columns", "user,item,-")),
        ("user,item,when\na,x,2024-01-01\n", ("--timestamp-format", "none")),
    ],
)
def test_no_other_column_is_proposed_as_times(fedrec, tmp_path, content, flags):
    path = tmp_path / "v.csv"
    path.write_text(content)
    found = fedrec("data", "describe", path, *flags, "--json").json
    assert (found["proposed"], found["held_out"]) == ({}, "random")
    out = fedrec("data", "describe", path, *flags).out
    assert "looks like times" not in out and "tied" not in out


def test_of_many_columns_those_are_looked_at_first_whose_names_tell(fedrec, tmp_path):
    path = tmp_path / "wide.csv"
    others = [f"c{number}" for number in range(40)]
    path.write_text(
        f"user,item,{','.join(others)},visited_when\na,x,{','.join(others)},1971-05-01\n"
    )
    seen = fedrec("data", "describe", path).out
    assert cells(seen)["columns ignored"] == ", ".join(others[:10]) + " and 31 more"
    assert "To read it, add --timestamp-column visited_when" in seen
    read = fedrec("data", "describe", path, "--timestamp-column", "visited_when").out
    assert cells(read)["times"] == "1971-05-01T00:00:00Z to 1971-05-01T00:00:00Z"


def test_first_rows_that_cannot_be_read_propose_nothing(fedrec, tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("user,item,when\n" + ",,\n" * 5000 + "a,x,2024-01-01\n")
    found = fedrec("data", "describe", path, "--json").json
    assert (found["proposed"], found["n_bad"], found["n_rows"]) == ({}, 5000, 5001)


NO_TIMES = ("--timestamp-format", "none")
SKIPPING = ("--columns", "user,-,item,timestamp")


@pytest.mark.parametrize(
    ("name", "content", "flags", "taken", "ignored"),
    [
        (
            "v.csv", "user,item,date,\na,x,5,\n", NO_TIMES,
            "user from user, item from item", "date, (no name)",
        ),
        (
            "v.csv", "a;7;x;5\n", SKIPPING,
            "user from column 1, item from column 3, time from column 4", "column 2",
        ),
        (
            "v.csv", "a;7;x;5\n", SKIPPING + NO_TIMES,
            "user from column 1, item from column 3", "column 2, column 4",
        ),
        (
            "v.jsonl", '{"item": "x", "shop": 7, "user": "a", "time": 5}\n', (),
            "user from user, item from item, time from time", "shop",
        ),
    ],
)  # fmt: skip
def test_columns_without_a_name_and_times_that_are_left_out(
    fedrec, tmp_path, name, content, flags, taken, ignored
):
    """A column of times that is not read is ignored like any other."""
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(content.encode()))
    rows = cells(fedrec("data", "describe", path, *flags).out)
    assert (rows["columns"], rows["columns ignored"]) == (taken, ignored)


def test_a_public_data_set_is_read_by_its_name(fedrec, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path))
    absent = fedrec("data", "describe", "filmtrust")
    assert (absent.code, "fedrec data import filmtrust" in absent.err) == (2, True)
    (tmp_path / "filmtrust").mkdir()
    (tmp_path / "filmtrust" / "interactions.csv").write_text("user,item\na,x\n")
    assert fedrec("data", "describe", "filmtrust", "--json").json["n_rows"] == 1


def test_what_is_between_fields_is_named(fedrec, tmp_path):
    for text, word, shown in (
        ("\t", "tab", "tabs"),
        ("::", "::", "'::'"),
        (" ", "space", "spaces"),
    ):
        path = tmp_path / "v.tsv"
        path.write_text(f"user{text}item{text}time\na{text}x{text}5\n")
        assert f"read as csv with {shown} between fields" in fedrec("data", "describe", path).out
        found = fedrec("data", "describe", path, "--json").json
        assert (found["separator"], found["first_time"]) == (word, "5")


def test_catalogue(fedrec, tmp_path, interactions_file):
    out = tmp_path / "made.csv"
    found = fedrec("data", "catalogue", interactions_file, "--out", out, "--json").json
    assert Catalogue.load(out).fingerprint() == found["fingerprint"]
    assert fedrec("data", "catalogue", interactions_file, "--out", out).code == 2


def test_split_deals_every_user_to_one_private_folder(fedrec, tmp_path, interactions_file):
    into = tmp_path / "clients"
    command = ("data", "split", interactions_file, "--clients", 3, "--into", into)
    found = fedrec(*command, "--json").json
    users: list[str] = []
    for row in found["clients"]:
        folder = Path(row["path"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "interactions.csv").stat().st_mode) == 0o600
        part, _ = read_interactions(folder / "interactions.csv", Reading(strict=True))
        users += sorted(set(part.user_ids.tolist()))
    assert len(users) == len(set(users)) == 24
    beside = Catalogue.load(interactions_file.parent / "catalogue.csv")
    assert Catalogue.load(into / "catalogue.csv") == beside
    assert fedrec(*command).code == 2
    assert fedrec("data", "split", interactions_file, "--clients", 99, "--into", into).code == 2
    Catalogue.of(["x"]).save(interactions_file.parent / "catalogue.csv")
    outcome = fedrec(*command[:-1], tmp_path / "others")
    assert outcome.code == 5 and "is not the catalogue of these data" in outcome.err
    assert not (tmp_path / "others").exists()


def test_an_unknown_dataset_names_the_known(fedrec):
    outcome = fedrec("data", "fetch", "netflix")
    assert outcome.code == 2
    assert "Known datasets: ml-100k." in outcome.err


def test_what_was_left_out_is_counted_and_what_is_doubtful_is_named(fedrec, tmp_path):
    path = tmp_path / "v.csv"
    rows = [f"guest,i{n},0" for n in range(20)] + [f"{n},{n},{1300000000 + n}" for n in range(9)]
    rows += ["1.0,x,1300000000", "user,item,time", "NULL,x,5", "a,x,\\N", "b"]
    path.write_text("user,item,time\n" + "".join(f"{row}\n" for row in rows))
    seen = fedrec("data", "describe", path)
    assert "3 of 34 rows were left out (1 without a user or an item, 1 the header):" in seen.err
    assert f"{path}:32: the header again" in seen.err
    assert "data: the user 'guest' has 20 of 31 rows. " in seen.err
    assert "data: users written both as 1 and as 1.0, each of which counts as two: 1." in seen.err
    assert "data: 20 of 31 rows have the time 0, which counts as the oldest" in seen.err
    found = fedrec("data", "describe", path, "--json").json
    counts = ("n_rows", "n_bad", "n_without_id", "n_headers", "n_below_rating")
    assert [found[name] for name in counts] == [34, 3, 1, 1, 0]
    assert (found["n_zero_timestamps"], found["interactions_without_time"]) == (20, 1)
    settings = tmp_path / "run.toml"
    settings.write_text(f'[data]\npath = "{path}"\n')
    seen = fedrec("check", settings)
    assert "left out (1 without a user or an item, 1 the header), the first in line 32" in seen.err
    assert "one user has 20 of 31 rows" in seen.err
    assert "guest" not in seen.err
    refused = fedrec("data", "import", path, "--into", tmp_path / "out", "--strict")
    assert (refused.code, "Line 32: the header again." in refused.err) == (2, True)


@pytest.mark.slow
def test_standard_input_is_a_file_too(tmp_path):
    rows = "user,item\n" + "".join(f"u{n % 9},i{n}\n" for n in range(90))
    settings = tmp_path / "run.toml"
    settings.write_text('[data]\npath = "-"\n')

    def run(text: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "fedrec", *map(str, arguments)]
        packed = gzip.compress(text.encode()) if text else b""
        return subprocess.run(command, input=packed, capture_output=True)

    for name in ("-", "/dev/stdin"):
        assert b'"n_users": 9' in run(rows, "data", "describe", name, "--json").stdout
        assert b"--save needs a file" in run(rows, "data", "describe", name, "--save").stderr
    assert b"data: /dev/stdin has no times" in run(rows, "check", settings).stderr
    assert b"/dev/stdin is empty" in run("", "check", settings).stderr
