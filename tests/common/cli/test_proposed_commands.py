"""Files and flags that are refused, each with a command that works: it is run, and rows counted."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A refused command and what the command that it proposes reads.

    Attributes:
        flags: given beside the file.
        proposed: the flags of the proposed command.
        n_rows: rows that it reads, of the file's 2 if nothing else is said.
        n_bad: rows that it leaves out.
        n_timed: how many of them have a time.
    """

    name: str = "v.csv"
    content: str | bytes
    flags: str = ""
    proposed: str
    n_rows: int = 2
    n_bad: int = 0
    n_timed: int = 0


_BARE = "1,55,5,875072688\n2,56,3,875072689\n"
_PLAIN = "user,item\na,x\nb,y\n"
_SHOP = "customer,product,when\nu1,x,{}\nu2,y,{}\n"
_DAYS = "user;item;time\na;x;{}\nb;y;{}\n"
_COLUMNS = "--columns user,item,rating,timestamp"

CASES: dict[str, Case] = {
    "no header": Case(content=_BARE, proposed=_COLUMNS, n_timed=2),
    "no header, and spaces": Case(
        name="v.txt", content="a x 5\nb y 1\n", proposed="--columns user,item,rating"
    ),
    "three numbers of a txt": Case(
        name="v.txt", content="1 2 1700000000\n1 3 1700000001\n",
        proposed="--columns user,item,timestamp", n_timed=2,
    ),
    "no header, ids of one form": Case(content="u1;x\nu2;y\n", proposed="--columns user,item"),
    "no header, one row": Case(content="u1;x\n", proposed="--columns user,item", n_rows=1),
    "no header, an unknown layout": Case(
        content=_BARE, flags="--layout bogus", proposed=_COLUMNS, n_timed=2
    ),
    "no header, a layout with one": Case(
        content=_BARE, flags="--layout ratings.csv", proposed=_COLUMNS, n_timed=2
    ),
    "no header, csv": Case(content=_BARE, flags="--layout csv", proposed=_COLUMNS, n_timed=2),
    "no header, a named column": Case(
        content="u1;x\nu2;y\n", flags="--user-column u1", proposed="--columns user,item"
    ),
    "no header, another separator": Case(
        content=_BARE, flags="--separator foo", proposed=_COLUMNS, n_timed=2
    ),
    "too few columns": Case(
        content=_BARE, flags="--columns user,item", proposed=_COLUMNS, n_timed=2
    ),
    "an unknown word for a column": Case(
        content=_BARE, flags="--columns user,film,rating,timestamp", proposed=_COLUMNS, n_timed=2
    ),
    "layout table without columns": Case(
        content=_BARE, flags="--layout table", proposed=_COLUMNS, n_timed=2
    ),
    "layout table under a header": Case(
        content=_PLAIN, flags="--layout table --columns user,item", proposed=""
    ),
    "a header of names that tell, in another order": Case(
        content="film_id,customer\nx,a\ny,b\n",
        proposed="--user-column customer --item-column film_id",
    ),
    "a column of ISO dates": Case(
        content=_SHOP.format("2024-01-01", "2024-01-02"), n_timed=2,
        proposed="--user-column customer --item-column product --timestamp-column when",
    ),
    "a column of other dates": Case(
        content=_SHOP.format("31.01.2024", "02.01.2024"), n_timed=2,
        proposed="--user-column customer --item-column product --timestamp-column when "
        "--timestamp-format %d.%m.%Y",
    ),
    "other names in JSON": Case(
        name="v.jsonl", n_timed=2,
        content='{"customer": 1, "product": "x", "when": 1700000000}\n'
        '{"customer": 2, "product": "y", "when": 1700000001}\n',
        proposed="--user-column customer --item-column product --timestamp-column when",
    ),
    "a named column that is not there": Case(
        content=_PLAIN, flags="--user-column customer", proposed=""
    ),
    "columns of JSON": Case(
        name="v.jsonl", content='{"user": 1, "item": 2}\n{"user": 2, "item": 3}\n',
        flags="--columns user,item", proposed="",
    ),
    "CSV as JSON": Case(content=_PLAIN, flags="--layout jsonl", proposed=""),
    "CSV as another fixed layout": Case(
        content=_PLAIN, flags="--layout u.data --separator comma", proposed=""
    ),
    "no such separator": Case(content=_PLAIN, flags="--separator foo", proposed=""),
    "another separator than the file's": Case(
        content=_PLAIN, flags="--separator tab", proposed=""
    ),
    "no ratings to compare": Case(content=_PLAIN, flags="--minimum-rating 4", proposed=""),
    "no ratings, and other names": Case(
        content="customer,product\nu1,x\nu2,y\n", flags="--minimum-rating 4",
        proposed="--user-column customer --item-column product",
    ),
    "a rating that nobody gave": Case(
        content="user,item,rating\na,x,5\nb,y,4\n", flags="--minimum-rating 9", proposed=""
    ),
    "days of more than twelve": Case(
        content=_DAYS.format("31.01.2024", "02.01.2024"), n_timed=2,
        proposed="--timestamp-format %d.%m.%Y",
    ),
    "dates with points, and a row of no user": Case(
        content=_DAYS.format("31.01.2024", "02.01.2024") + ";z;02.01.2024\n", n_bad=1, n_timed=2,
        proposed="--timestamp-format %d.%m.%Y",
    ),
    "dates with points": Case(
        content=_DAYS.format("01.02.2024", "02.02.2024"), n_timed=2,
        proposed="--timestamp-format %d.%m.%Y",
    ),
    "dates as nobody writes a format": Case(
        content=_DAYS.format("01.02.2024", "02.02.2024"), flags="--timestamp-format dd.mm.yyyy",
        proposed="--timestamp-format %d.%m.%Y", n_timed=2,
    ),
    "days before months": Case(
        content=_DAYS.format("31/01/2024", "02/01/2024"), n_timed=2,
        proposed="--timestamp-format %d/%m/%Y",
    ),
    "months before days": Case(
        content=_DAYS.format("01/31/2024", "02/01/2024"), n_timed=2,
        proposed="--timestamp-format %m/%d/%Y",
    ),
    "ISO dates under another format": Case(
        content=_DAYS.format("2024-01-01", "2024-01-02"), flags="--timestamp-format %d.%m.%Y",
        proposed="--timestamp-format auto", n_timed=2,
    ),
    "latin-1": Case(
        content="user,item\na,ü\nb,y\n".encode("latin-1"), proposed="--encoding latin-1"
    ),
    "utf-16 without a mark": Case(
        content=_PLAIN.encode("utf-16-le"), proposed="--encoding utf-16-le"
    ),
    "an unknown encoding": Case(
        content=_PLAIN, flags="--encoding klingon", proposed="--encoding utf-8"
    ),
    "zones and none": Case(
        content="user,item,time\na,x,2021-01-01\nb,y,2021-01-01T10:00Z\n",
        proposed="--timestamp-format iso", n_timed=2,
    ),
    "a bad row where none may be": Case(
        content="user,item\na,x\n,y\n", flags="--strict", proposed="", n_rows=1, n_bad=1
    ),
    "columns beside a header": Case(content=_PLAIN, flags="--columns user,item", proposed=""),
    "minimums that nobody reaches": Case(
        content=_PLAIN, flags="--minimum-interactions 9", proposed="--minimum-interactions 1"
    ),
    "minimums of items that nobody reaches": Case(
        content=_PLAIN, flags="--minimum-item-interactions 5",
        proposed="--minimum-item-interactions 1",
    ),
}  # fmt: skip


def proposed_by(error: str) -> list[str]:
    """Return the command that an error says would work, without `fedrec` itself."""
    found = re.search(r"^  As in: fedrec (.*)$", error, re.MULTILINE)
    assert found is not None, error
    return shlex.split(found[1])


@pytest.mark.parametrize("name", CASES)
def test_the_proposed_command_reads_every_row(fedrec, tmp_path, name):
    case = CASES[name]
    path = tmp_path / case.name
    path.write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    refused = fedrec("data", "describe", path, *case.flags.split())
    assert refused.code == 2
    assert "error [data]" in refused.err
    assert re.search(r"--[a-z-]+ \(data\.[a-z_]+\)", refused.err)
    again = proposed_by(refused.err)
    assert again == ["data", "describe", str(path), *case.proposed.split()]
    worked = fedrec(*again, "--json")
    assert worked.code == 0, worked.err
    found = worked.json
    n_rows = found["n_interactions"] + found["n_duplicates"]
    assert (n_rows, found["n_bad"]) == (case.n_rows, case.n_bad)
    assert n_rows - found["interactions_without_time"] == case.n_timed


READINGS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "a header of other names": (
        "wer;was;wann\na;x;1\nb;y;2\n",
        {
            "--user-column wer --item-column was": ["user a, item x", "user b, item y"],
            "--user-column was --item-column wer": ["user x, item a", "user y, item b"],
        },
    ),
    "two columns for the item": (
        "user\titem\titem_id\na\tx\t1\nb\ty\t2\n",
        {
            "--item-column item": ["user a, item x", "user b, item y"],
            "--item-column item_id": ["user a, item 1", "user b, item 2"],
        },
    ),
    "two separators": (
        "user,item,;user;item\na,b,;c;d\nb,c,;e;f\n",
        {
            "--separator comma": ["user a, item b", "user b, item c"],
            "--separator semicolon": ["user c, item d", "user e, item f"],
        },
    ),
    "days or months": (
        _DAYS.format("1/2/2021", "2/1/2021") + "c;z;3/4/2021\nd;z;3/4/2021\n",
        {
            "--timestamp-format %d/%m/%Y": [
                "user a, item x, time 2021-02-01T00:00:00Z",
                "user b, item y, time 2021-01-02T00:00:00Z",
                "user c, item z, time 2021-04-03T00:00:00Z",
            ],
            "--timestamp-format %m/%d/%Y": [
                "user a, item x, time 2021-01-02T00:00:00Z",
                "user b, item y, time 2021-02-01T00:00:00Z",
                "user c, item z, time 2021-03-04T00:00:00Z",
            ],
        },
    ),
}


def readings_of(error: str) -> dict[str, list[str]]:
    """Return the commands of an error that leaves the choice, each with the rows it shows."""
    found: dict[str, list[str]] = {}
    for line in error.splitlines():
        if match := re.match(r"  Either: fedrec (.*)", line):
            rows = found.setdefault(match[1], [])
        elif line.startswith("    user "):
            rows.append(line.strip())
    return found


@pytest.mark.parametrize("name", READINGS)
def test_of_several_readings_none_is_chosen(fedrec, tmp_path, name):
    content, expected = READINGS[name]
    path = tmp_path / "v.csv"
    path.write_text(content)
    refused = fedrec("data", "describe", path)
    assert (refused.code, "As in" in refused.err) == (2, False)
    found = readings_of(refused.err)
    assert found == {f"data describe {path} {flags}": rows for flags, rows in expected.items()}
    for command in found:
        assert fedrec(*shlex.split(command)).code == 0
    assert fedrec("data", "describe", path, "--json").json["remedy"].count("Either") == len(found)


@pytest.mark.parametrize("times", [("875072688", "1700000000000"), ("875072688", "2021-01-01")])
def test_times_that_have_no_order_propose_nothing(fedrec, tmp_path, times):
    path = tmp_path / "v.csv"
    path.write_text("user,item,time\na,x,{}\nb,y,{}\n".format(*times))
    refused = fedrec("data", "describe", path)
    assert (refused.code, "As in" in refused.err) == (2, False)
    assert "--timestamp-format (data.timestamp_format)" in refused.err


def test_import_without_a_folder_proposes_one(fedrec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("v.csv").write_text(_PLAIN)
    for folder in ("data", "v-data"):
        again = proposed_by(fedrec("data", "import", "v.csv").err)
        assert again == ["data", "import", "v.csv", "--into", folder]
        worked = fedrec(*again, "--json")
        assert (worked.code, worked.json["n_rows"]) == (0, 2)


@pytest.mark.parametrize(
    ("content", "flags", "text"),
    [
        (
            "# exported\nuser,item\na,x\n",
            "",
            "begins with a comment.*tail -n \\+2 .*/v.csv > .*rows-v.csv",
        ),
        ("# exported, by us\nuser,item\na,x\n", "", "begins with a comment"),
        ("# exported\nuser,item\na,x\n", "--layout csv", "begins with a comment"),
        ("user;item\na;x\n", "--layout jsonl", "line 1, is not a JSON line: not JSON: "),
        (
            _BARE,
            "--columns user,film,rating,-",
            "'film' is not one of user, item, rating, timestamp",
        ),
        (_PLAIN, "--minimum-rating 4", "Omit --minimum-rating"),
        (_DAYS.format("1/2/2021", "2/1/2021"), "", "written as %d/%m/%Y or as %m/%d/%Y: choose"),
    ],
)
def test_what_is_wrong_is_named(fedrec, tmp_path, content, flags, text):
    path = tmp_path / "v.csv"
    path.write_text(content)
    refused = fedrec("data", "describe", path, *flags.split())
    assert refused.code == 2
    assert re.search(text, refused.err, re.DOTALL), refused.err


_ROWS = "".join(f"{n % 4}\t{n % 5}\t5\t{875072688 + n}\n" for n in range(20))

REWRITTEN: dict[str, tuple[str, str, int]] = {
    "sep=": ("v.csv", "sep=;\nuser;item\n" + "a;x\nb;y\n" * 3, 6),
    "KONECT": ("out.net", "% bip weighted posweighted\n% 20 4 5\n" + _ROWS.replace("\t", " "), 20),
    "Matrix Market": ("m.mtx", "%%MatrixMarket matrix\n%\n4 5 20 1\n" + _ROWS, 20),
    "comments": ("v.csv", "# exported\n\n# by us\nuser,item\na,x\nb,y\nc,z\nd,z\n", 4),
    "Python": (
        "v.json",
        "".join(f"{{u'user': u'it\\'s {n}', 'item': 'x', 'owned': True}}\n" for n in range(20)),
        20,
    ),
    "Python in JSON lines": (
        "v.jsonl",
        "{'user': 'a', 'item': None}\n{'user': 'b', 'item': 1}\n",
        2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REWRITTEN)
def test_a_command_that_rewrites_a_file_makes_one_that_can_be_read(fedrec, tmp_path, name):
    file, content, n_rows = REWRITTEN[name]
    path = tmp_path / file
    path.write_text(content)
    refused = fedrec("data", "describe", path)
    assert (refused.code, "As in" in refused.err) == (2, False)
    assert "--layout" not in refused.err
    command = re.search(r"(tail|python3) .*", refused.err)
    assert command is not None
    subprocess.run(["bash", "-c", command[0]], check=True, timeout=60)
    (made,) = set(tmp_path.iterdir()) - {path}
    read = fedrec("data", "describe", made, "--json")
    if read.code:
        read = fedrec(*proposed_by(fedrec("data", "describe", made).err), "--json")
    assert read.json["n_rows"] == n_rows


@pytest.mark.parametrize("columns", ["", "user,item,timestamp"])
def test_blanks_after_commas_do_not_count(fedrec, tmp_path, columns):
    path = tmp_path / "v.csv"
    header = "" if columns else "User ID, Item ID, Timestamp\n"
    path.write_text(f'{header}1, "a, b", 1300000000\n1, c, 1300000001\n2,c, 1300000002\n')
    flags = ("--columns", columns) if columns else ()
    found = fedrec("data", "describe", path, *flags, "--json").json
    assert (found["n_users"], found["n_items"], found["separator"]) == (2, 2, "comma")
    assert found["first_time"] == "2011-03-13T07:06:40Z"


def test_what_does_not_help_is_not_proposed(fedrec, tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("user,item\n,x\n,y\n")
    refused = fedrec("data", "describe", path, "--separator", "comma", "--strict")
    assert refused.code == 2
    assert "As in" not in refused.err
