"""Every command that takes a file of interactions reads it alike, and says how it would work."""

from __future__ import annotations

import gzip
import re
import shlex
import tomllib

import pytest

from fedrec.cli.data_options import DATA_FLAGS
from fedrec.data import READERS
from fedrec.data.reading import DataSettings

from .test_proposed_commands import proposed_by, readings_of


def test_flags_are_the_settings(fedrec):
    assert set(DATA_FLAGS) | {"path", "catalogue"} == set(DataSettings.model_fields)
    for command in ("import", "describe"):
        text = fedrec("data", command, "--help").out
        assert all(f"--{name.replace('_', '-')}" in text for name in DATA_FLAGS), command


@pytest.mark.parametrize(
    "command",
    ["init", "provision", "data split x", "data catalogue x", "recommend x", "client run x",
     "client serve x", "client export x", "simulate x", "check x"],
)  # fmt: skip
def test_a_flag_of_other_commands_is_refused_with_what_says_it_now(fedrec, command):
    for flag in ("--separator", "--minimum-rating", "--strict"):
        refused = fedrec(*command.split(), flag, "4")
        assert refused.code == 2
        assert f"Use `fedrec data describe FILE {flag} ... --save`." in refused.err


def test_every_layout_is_in_the_help(fedrec):
    text = fedrec("data", "describe", "--help").out.split("--separator")[0]
    shown = re.sub(r"\W+(?=\s)|│", " ", text).split()
    assert set(READERS) <= set(shown)


@pytest.fixture
def odd_file(tmp_path, interactions_file):
    """The users of `interactions_file`, without a header, between semicolons, compressed."""
    lines = interactions_file.read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    body = "".join(f"{time};{item};{user};5\n" for user, item, time in rows)
    path = tmp_path / "odd.csv.gz"
    path.write_bytes(gzip.compress(body.encode()))
    return path


ODD = ("--columns", "-,item,user,rating", "--minimum-rating", "3")


@pytest.fixture
def described_file(fedrec, odd_file):
    """`odd_file` with its description beside it."""
    saved = fedrec("data", "describe", odd_file, *ODD, "--save")
    assert saved.code == 0, saved.err
    description = odd_file.with_name("odd.csv.gz.data.toml")
    assert description.read_text() == 'columns = "-,item,user,rating"\nminimum_rating = 3.0\n'
    return odd_file


def test_what_is_said_once_is_read_by_every_command(fedrec, tmp_path, described_file):
    path = tmp_path / "run.toml"
    made = fedrec("init", path, "--data", described_file, "--clients", "3", "--json").json
    assert made["n_users"] == 24
    data = tomllib.loads(path.read_text())["data"]
    assert "columns" not in data
    assert fedrec(*shlex.split(made["next"][0])[1:]).code == 0
    assert "24 in data.path" in fedrec("check", path).out
    sources = fedrec("check", path, "--json").json["sources"]
    assert sources["data.columns"]["where"] == f"{described_file}.data.toml:1"
    assert fedrec("data", "describe", described_file, "--json").json["n_users"] == 24
    dealt = fedrec("data", "split", described_file, "--clients", 2, "--into", tmp_path / "parts")
    assert dealt.code == 0, dealt.err
    assert fedrec("audit", path, "--json").json["sums"]["users"] == 24


def test_a_setting_and_a_flag_go_before_the_description(fedrec, tmp_path, described_file):
    path = tmp_path / "run.toml"
    path.write_text(
        f'[data]\npath = "{described_file}"\nminimum_rating = 6\n'
        "[federation]\nminimum_item_users = 1\n"
    )
    refused = fedrec("check", path)
    assert "data.minimum_rating" in refused.err
    assert fedrec("check", path, "--set", "data.minimum_rating=5").code == 0
    taken = fedrec("check", path, "--set", "data.minimum_rating=")
    assert taken.code == 0
    columns = fedrec("check", path, "--set", "data.minimum_rating=", "--set", "data.columns=")
    assert columns.code == 2
    assert "--set data.columns=" in columns.err
    seen = fedrec("data", "describe", described_file, "--minimum-rating", "6")
    assert "None of the" in seen.err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("separator = 'comma\n", "odd.csv.gz.data.toml:1: invalid TOML"),
        ("seperator = 'comma'\n", "odd.csv.gz.data.toml:1: seperator is none of layout, columns"),
        ("minimum_interactions = 0\n", "data.toml:1: data.minimum_interactions = 0: expected"),
        ("path = 'x'\n", "path is none of layout"),
    ],
)
def test_a_description_that_says_nonsense_is_refused(fedrec, odd_file, content, text):
    odd_file.with_name("odd.csv.gz.data.toml").write_text(content)
    refused = fedrec("data", "describe", odd_file)
    assert refused.code == 2
    assert text in refused.err


def test_other_commands_propose_to_say_it_once(fedrec, tmp_path, interactions_file):
    path = tmp_path / "v.csv"
    path.write_text(interactions_file.read_text().partition("\n")[2])
    refused = fedrec("init", tmp_path / "run.toml", "--data", path)
    again = proposed_by(refused.err)
    assert again[:4] == ["data", "describe", str(path), "--save"]
    assert fedrec(*again).code == 0
    assert fedrec("init", tmp_path / "run.toml", "--data", path).code == 0


def test_a_settings_file_is_corrected_by_set(fedrec, tmp_path, odd_file):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\npath = "{odd_file}"\n')
    refused = fedrec("check", path)
    again = shlex.split(next(iter(readings_of(refused.err))))
    # The order of the file is time, item, user.
    assert again[2:] == ["--set", "data.columns=-,user,item,-"]
    found = fedrec(
        *again, "--set", "federation.minimum_item_users=1",
        "--set", "data.columns=-,item,user,rating",
    )  # fmt: skip
    assert found.code == 0, found.err


@pytest.mark.parametrize("verb", ["check", "simulate"])
@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ('separator = "comma"', "data.separator="),
        ("minimum_rating = 9", "data.minimum_rating="),
        ("minimum_interactions = 9", "data.minimum_interactions=1"),
        ("", "data.columns=user,item,rating,timestamp"),
    ],
)
@pytest.mark.slow
def test_commands_of_a_settings_file_name_settings_and_unset_them(
    fedrec, tmp_path, monkeypatch, verb, setting, option
):
    monkeypatch.chdir(tmp_path)
    header = "user\titem\trating\n" if setting else ""
    rows = [(f"u{user}", f"i{(user + item) % 5}", item) for user in range(5) for item in range(4)]
    times = ["" if setting else f"\t{875072688 + place}" for place in range(len(rows))]
    body = "".join(
        f"{user}\t{item}\t{rating}{time}\n"
        for (user, item, rating), time in zip(rows, times, strict=True)
    )
    (tmp_path / "v.csv").write_text(header + body)
    (tmp_path / "s.toml").write_text(
        f'[data]\npath = "v.csv"\n{setting}\n[federation]\nminimum_item_users = 1\n'
        'maximum_users = 16\n[rounds]\ntotal = 1\n[update]\nstructure = "dense"\n'
        '[algorithm]\nname = "fedmf"\ndim = 2\n[protection]\nname = "masks"\n'
    )
    refused = fedrec(verb, "s.toml")
    assert refused.code == 2
    assert "data." in refused.err and re.search(r"--(?!set)", refused.err) is None, refused.err
    again = proposed_by(refused.err)
    assert again == [verb, "s.toml", "--set", option]
    worked = fedrec(*again)
    assert worked.code == 0, worked.err


def test_provision_reads_a_trial_and_deals_it_out(fedrec, tmp_path, described_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = fedrec(
        "provision", "--data", described_file, "--clients", "a,b,c",
        "--address", "127.0.0.1:7447", "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert made.json["n_items"] == 30
    kit = tomllib.loads((tmp_path / "kits" / "clients" / "a" / "client.toml").read_text())
    assert kit["data"] == {"path": "interactions.csv"}


def test_a_client_with_data_of_its_own_reads_as_the_federation_says(
    fedrec, tmp_path, interactions_file, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "federation.toml"
    command = ("provision", "--catalogue", interactions_file.parent / "catalogue.csv")
    made = fedrec("init", "--clients", "a,b,c", "--address", "127.0.0.1:7447")
    assert made.code == 0, made.err
    whole = settings.read_text()
    for minimum, code in ((3, 2), (1, 0)):
        text = f"[data]\nminimum_rating = 4.0\nminimum_item_interactions = {minimum}\n"
        settings.write_text(re.sub(r"(?m)^\[data\].*\n", text, whole))
        made = fedrec(*command)
        assert made.code == code, made.err
        assert ("a client cannot count the users of other clients" in made.err) == bool(code)
    kit = tmp_path / "kits" / "clients" / "a" / "client.toml"
    assert tomllib.loads(kit.read_text())["data"]["minimum_rating"] == 4.0
    kit.write_text(
        kit.read_text().replace(
            "minimum_rating = 4", "minimum_item_interactions = 2\nminimum_rating = 4"
        )
    )
    for verb in (("client", "run"), ("recommend", "--user", "u1")):
        refused = fedrec(*verb, kit)
        assert refused.code == 2
        assert "federation.minimum_item_users" in refused.err


def test_values_that_settings_refuse_are_refused_as_flags(fedrec, interactions_file):
    refused = fedrec("data", "describe", interactions_file, "--minimum-interactions", "0")
    assert refused.code == 2
    assert "data.minimum_interactions = 0: expected an integer" in refused.err


def test_describe_says_that_held_out_items_are_random(fedrec, tmp_path, interactions_file):
    path = tmp_path / "v.csv"
    path.write_text("user,item\na,x\na,y\n")
    seen = fedrec("data", "describe", path)
    assert "has no times, so held-out items are random" in seen.out
    assert fedrec("data", "describe", path, "--json").json["interactions_without_time"] == 2
    assert "no times" not in fedrec("data", "describe", interactions_file).out
    leave = fedrec("data", "describe", interactions_file, "--timestamp-format", "none")
    assert "has no times" in leave.out


def test_minimums_are_a_core_and_counted(fedrec, tmp_path):
    # z has one user; without z, c has one item; without c, y has one user; a and b share x.
    path = tmp_path / "v.csv"
    path.write_text("user,item\na,x\nb,x\na,w\nb,w\nc,y\nc,z\nb,y\n")
    flags = ("--minimum-interactions", 2, "--minimum-item-interactions", 2)
    seen = fedrec("data", "import", path, "--into", tmp_path / "out", *flags)
    assert seen.code == 0
    assert "1 of 3 users, 2 of 4 items, 3 of 7 rows" in seen.err
    kept = (tmp_path / "out" / "interactions.csv").read_text().splitlines()
    assert kept == ["user_id,item_id,timestamp", "a,w,", "a,x,", "b,w,", "b,x,"]
