"""`fedrec provision` says before a run for whom rounds wait, and which cells there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from authority.test_provisioning import call, data, here, trial

from fedrec.algorithms import ALGORITHMS
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec_authority.provisioning import exposure_words

__all__ = ["data", "here"]

pytestmark = pytest.mark.slow


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def guests(here: Path, data: Path, names: str, go_on: str, *, least: int = 3) -> None:
    """Write federation.toml for some clients, of whom some may be missing."""
    given = ("--data", data, "--clients", names, "--address", "127.0.0.1:7447")
    assert call(*given, "--into", "unused") == 0
    path = here / "federation.toml"
    text = path.read_text().replace("# go_on = []", f"go_on = [{go_on}]")
    path.write_text(re.sub(r"(?m)^minimum_clients = .*$", f"minimum_clients = {least}", text))


def test_before_the_start_people_hear_whom_rounds_wait_for(here, data, capsys):
    assert trial(data) == 0
    three = told(capsys)
    assert "In every round all 3 clients must be there" in three
    assert "3 is the fewest, so that none can be marked" in three
    assert "begin a new federation: run `fedrec provision` again" in three
    guests(here, data, "a,b,c,d", "")
    four = told(capsys)
    assert "In every round all 4 clients must be there" in four
    assert "waited for no more, as long as 3 are left. parties.go_on names" in four
    assert not any("cell" in words.partition("All clients are")[0] for words in (three, four))
    assert "could read the vector of every user" in " ".join(three.split())
    kit = (here / "kits" / "clients" / "north" / "client.toml").read_text()
    assert "accept_member_exposure = true" in kit


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_cell_is_told_under_every_algorithm(name):
    plan = {"algorithm": {"name": name}, "update": {"structure": "dense"}}
    settings = Settings.model_validate(plan | {"protection": {"name": "bfv"}})
    words = exposure_words(settings, 3)
    assert words.startswith("All clients are in one cell") and "no party can detect" in words
    assert ("accept_member_exposure = true" in words) == (name in ("ease", "fedals", "sketch"))
    assert "set client.minimum_own_item_users = 3 or more" in words
    assert not exposure_words(settings, 6)
    floor = settings.client.model_copy(update={"minimum_own_item_users": 3})
    assert not exposure_words(settings.model_copy(update={"client": floor}), 3)


def test_a_trial_whose_clients_have_too_few_users_for_their_floor(here, data, capsys):
    assert trial(data, "--into", "first") == 0
    path = here / "federation.toml"
    path.write_text(path.read_text() + "\n[client]\nminimum_own_item_users = 14\n")
    capsys.readouterr()
    assert call(path, "--data", data, "--into", "second") == 5
    said = " ".join(capsys.readouterr().err.split())
    assert "client.minimum_own_item_users is 14, but this client has 13 users" in said
    assert not (here / "second").exists()


def test_before_the_start_people_hear_that_the_plan_wants_all_for_good(here, data, capsys):
    guests(here, data, "a,b,c,d,e", "", least=5)
    capsys.readouterr()
    assert call("federation.toml") == 0
    assert (
        "rounds.minimum_clients is 5: if one of them is lost for good, the others cannot go on. "
        "Lower it to 3 or more before the start"
    ) in told(capsys)


def test_who_may_be_missing_is_in_its_kit(here, data, capsys):
    guests(here, data, "a,b,c,d", '"d"')
    capsys.readouterr()
    assert call("federation.toml") == 0
    said = told(capsys)
    assert "d may be missing. In every round the 3 others must be there" in said
    away = {
        name: load_settings(here / "kits" / "clients" / name / "client.toml").client.when_away
        for name in "abcd"
    }
    assert away == {"a": "wait", "b": "wait", "c": "wait", "d": "go_on"}


def test_many_clients_hear_of_cells(here, data, capsys):
    given = ("--data", data, "--address", "127.0.0.1:7447", "--clients")
    assert call(*given, "9") == 0
    three_cells = told(capsys)
    assert "whole cells of 3 to 5 clients" in three_cells
    assert "the others go on" in three_cells and "could read" not in three_cells


def test_as_many_cells_as_may_be_corrupt_and_one_wait_for_all(here, data, capsys):
    given = ("--data", data, "--clients", "7", "--address", "127.0.0.1:7447")
    assert call(*given) == 0
    assert "over 2 whole cells of clients" in (said := told(capsys))
    assert "need 2 of them (federation.corrupt_cells)" in said


def test_cells_that_no_round_could_be_over_are_refused(here, data, capsys):
    assert call("--data", data, "--clients", "7", "--address", "127.0.0.1:7447") == 0
    settings = here / "federation.toml"
    text = settings.read_text()
    settings.write_text(text.replace("[federation]", "[federation]\ncorrupt_cells = 2", 1))
    assert call("federation.toml", "--clients", "7", "--into", "others") == 2
    assert "Set federation.corrupt_cells = 1" in " ".join(capsys.readouterr().err.split())
    assert not (here / "others").exists()


@pytest.mark.parametrize(
    ("clients", "go_on", "said"),
    [
        ("a,b,c", '"a", "b", "c"', 'at least 3 must have client.when_away = "wait"'),
        ("a,b,c,d", '"c", "d"', "leaves 2 clients that rounds wait for; at least 3"),
        ("a,b,c,d", '"e"', "parties.go_on: 'e' is none of the clients"),
    ],
)
def test_too_few_that_wait_make_no_kit(here, data, clients, go_on, said, capsys):
    guests(here, data, clients, go_on)
    assert call("federation.toml") == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (here / "kits").exists()


def test_guests_do_not_count_to_the_fewest_clients(here, data, capsys):
    guests(here, data, "a,b,c,d,e", '"d"', least=5)
    assert call("federation.toml") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "leaves 4 clients" in said and "Set rounds.minimum_clients = 4" in said


def test_nobody_is_a_guest_where_nobody_is_waited_for(here, data, capsys):
    guests(here, data, "a,b,c,d", '"d"')
    path = here / "federation.toml"
    text = path.read_text().replace('key_holder = "authority"', 'key_holder = "members"')
    path.write_text(text)
    assert call("federation.toml") == 2
    assert "rounds wait for nobody in particular" in " ".join(capsys.readouterr().err.split())
