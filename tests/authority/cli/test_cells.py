"""Cells in the authority's commands."""

import json
import re
from dataclasses import replace

import pytest
from authority.members.test_guests import World, people
from authority.test_provisioning import call, data, here, trial
from world.federation import rotate

from fedrec.algorithms import ALGORITHMS
from fedrec.cli.main import main
from fedrec.errors import KeysError
from fedrec.follower.stored_state import RunPin
from fedrec.identity.document import write_public
from fedrec.identity.roster import check_cells
from fedrec.ids import RoundId
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec_authority.cli.roster import changed
from fedrec_authority.folder import backup as backup_module
from fedrec_authority.folder.authority_folder import STATE_FOLDER, AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.provisioning import exposure_words

__all__ = ["data", "here"]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "keys")


@pytest.fixture
def call_cells(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")

    def run(*words):
        with pytest.raises(SystemExit) as left:
            main(["keys", "roster", *map(str, words), "--into", str(tmp_path / "keys")])
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out + shown.err

    return run


def listed(call):
    """Return each client's cell and presence by its label."""
    found = json.loads(call("list", "--json")[1])
    return {one["label"]: (one["cell"], one["presence"]) for one in found["clients"]}


def test_with_one_cell_the_word_is_not_shown(world, call_cells):
    *core, guest, late = people(5)
    world.join(*core, guests=(guest,))
    world.join(late)
    code, output = call_cells("list")
    assert code == 0 and "cell" not in output
    lines = {line.split()[2]: line for line in output.splitlines() if line.startswith("member")}
    assert "guest" in lines["client-3"] and "guest" not in lines["client-0"]
    assert "waits for other newcomers" in lines["client-4"]
    assert listed(call_cells)["client-3"] == (1, "guest")
    assert listed(call_cells)["client-4"] == (0, "waiting")


def test_a_newcomer_that_waits_is_named_when_it_is_added(world, capsys):
    *core, first, second, third = people(6)
    world.join(*core)
    assert world.roster.unplaced == ()
    notes = []
    for late in (first, second):
        world.join(late)
        made = world.folder.newest
        assert made is not None
        found = changed(world.folder.path, "added it", made, world.folder.membership)
        notes.append(str(list(found.text)[-1]))
    others = "newcomers are summed with at least 2 others that joined since the last cell was made"
    expected = f"In no sum yet: {first.public.label}, because {others}: 2 more have to join."
    assert notes[0].startswith(expected)
    assert ": 1 more has to join." in notes[1] and second.public.label in notes[1]
    assert world.roster.why_unplaced(joining=1) == "", "the third one makes a cell with them"
    world.join(third)
    assert world.roster.unplaced == ()


def test_with_two_cells_every_members_is_listed(world, call_cells):
    all_members = people(7)
    world.join(*all_members[:6], guests=all_members[6:])
    cells = world.partition.cells
    output = call_cells("list")[1]
    for cell in cells:
        for client_id in cell.members:
            (line,) = (line for line in output.splitlines() if client_id in line)
            assert f"cell {cell.id}" in line
    labels = {who.client_id: who.public.label for who in all_members}
    found = listed(call_cells)
    for cell in cells:
        assert all(found[labels[one]] == (cell.id, "core") for one in cell.core)
        assert all(found[labels[one]] == (cell.id, "guest") for one in cell.guests)


def pause(world, cell_id):
    """Put a cell's pause into the newest roster, as a refused sum will."""
    roster = world.roster
    cells = tuple(
        replace(cell, state="paused") if cell.id == cell_id else cell
        for cell in roster.partition.cells
    )
    paused = replace(roster, partition=replace(roster.partition, cells=cells))
    path = world.folder.private / "rosters" / f"{roster.epoch:08d}.json"
    write_public(path, paused.to_json())


def test_a_paused_cell_is_resumed_in_the_next_epoch(world, call_cells):
    world.join(*people(6))
    pause(world, 2)
    assert "cell 2, paused" in call_cells("list")[1]
    rotate(world.folder)
    before = world.roster
    assert [cell.state for cell in before.partition.cells] == ["active", "paused"]
    code, output = call_cells("resume", 2)
    assert code == 0 and "resumed cell 2" in output
    check_cells(before, world.roster)
    assert [cell.state for cell in world.partition.cells] == ["active", "active"]


def test_a_restored_authority_knows_which_cells_are_paused(world, tmp_path, monkeypatch):
    """Its first roster says so, which is the only one that members and coordinator go by."""
    monkeypatch.setattr(backup_module, "COST", 2**10)
    world.join(*people(6))
    pin = RunPin(federation="films", run="run", plan_json="{}", catalogue_fingerprint="", users="")
    with OpenedSums(world.folder.revealer.folder / STATE_FOLDER) as store:
        store.bind(pin, world.roster.epoch)
        store.record_reveal(RoundId(3), b"list", b"sum")
        store.record_paused(RoundId(3), (2,), b"kept", newest=1)
    assert world.folder.paused == (2,)
    back_up(world.folder, tmp_path / "copy", "a passphrase of words")
    fresh = AuthorityFolder(tmp_path / "fresh")
    restore(tmp_path / "copy", fresh, "a passphrase of words")
    assert fresh.paused == (2,)
    cells = rotate(fresh).roster.partition.cells
    assert [cell.state for cell in cells] == ["active", "paused"]


@pytest.mark.parametrize(
    ("cell", "note"), [(1, "it is active"), (3, "there is none of that number")]
)
def test_a_cell_that_is_not_paused_is_told(world, call_cells, cell, note):
    world.join(*people(6))
    before = world.roster
    code, output = call_cells("resume", cell)
    assert code == KeysError.exit_code and world.roster == before
    words = " ".join(output.split())
    assert f"Cell {cell} is not paused: {note}" in words and "Paused cells: none" in words


def test_sizes_for_the_present_members_or_for_more(world, call_cells):
    world.join(*people(6))
    found = json.loads(call_cells("cells", "--json")[1])
    assert found["clients"] == 6 and [one["size"] for one in found["sizes"]] == [3, 4, 4]
    given = ("cells", "--clients", 100, "--corrupt-share", ".1")
    found = json.loads(call_cells(*given, "--json")[1])
    assert [one["size"] for one in found["sizes"]] == [3, 10, 13]
    assert found["sizes"][1]["counted"]["10 %"] == pytest.approx(0.9**10)
    output = call_cells(*given)[1]
    assert "2^-40" in output and "13" in output and "0.25" in output
    for wrong in ("2", "-.1", "x", "1/0"):
        code, output = call_cells("cells", "--clients", 100, "--corrupt-share", wrong)
        assert code == 2 and "--corrupt-share" in output
    code, output = call_cells("cells", "--clients", 2)
    assert code == 2 and "--clients" in output


def output_of(capsys):
    return " ".join(capsys.readouterr().out.split())


def guests(here, data, names, go_on, *, least=3):
    """Write federation.toml for some clients, of whom some may be missing."""
    given = ("--data", data, "--clients", names, "--address", "127.0.0.1:7447")
    assert call(*given, "--into", "unused") == 0
    path = here / "federation.toml"
    text = path.read_text().replace("# go_on = []", f"go_on = [{go_on}]")
    path.write_text(re.sub(r"(?m)^minimum_clients = .*$", f"minimum_clients = {least}", text))


@pytest.mark.slow
def test_before_the_start_people_hear_whom_rounds_wait_for(here, data, capsys):
    assert trial(data) == 0
    three = output_of(capsys)
    assert "Every round needs all 3 clients." in three
    assert "3 is the minimum, so no client may be missing" in three
    assert "begin a new federation: run `fedrec provision` again" in three
    guests(here, data, "a,b,c,d", "")
    four = output_of(capsys)
    assert "Every round needs all 4 clients." in four
    assert "as long as 3 are left. Clients in parties.go_on" in four
    assert not any("cell" in words.partition("All clients are")[0] for words in (three, four))
    assert "could read the vector of every user" in " ".join(three.split())
    kit = (here / "kits" / "clients" / "north" / "client.toml").read_text()
    assert "accept_member_exposure = true" in kit


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_trial_whose_clients_have_too_few_users_for_their_floor(here, data, capsys):
    assert trial(data, "--into", "first") == 0
    path = here / "federation.toml"
    path.write_text(path.read_text() + "\n[client]\nminimum_own_item_users = 14\n")
    capsys.readouterr()
    assert call(path, "--data", data, "--into", "second") == 5
    note = " ".join(capsys.readouterr().err.split())
    assert "client.minimum_own_item_users is 14, but this client has 13 users" in note
    assert not (here / "second").exists()


@pytest.mark.slow
def test_before_the_start_people_hear_that_the_plan_wants_all_for_good(here, data, capsys):
    guests(here, data, "a,b,c,d,e", "", least=5)
    capsys.readouterr()
    assert call("federation.toml") == 0
    assert (
        "rounds.minimum_clients is 5: if a client is lost for good, the others cannot continue. "
        "To allow that, lower it to 3 or more before the start"
    ) in output_of(capsys)


@pytest.mark.slow
def test_who_may_be_missing_is_in_its_kit(here, data, capsys):
    guests(here, data, "a,b,c,d", '"d"')
    capsys.readouterr()
    assert call("federation.toml") == 0
    note = output_of(capsys)
    assert "d may be missing. Every round needs the 3 others." in note
    away = {
        name: load_settings(here / "kits" / "clients" / name / "client.toml").client.when_away
        for name in "abcd"
    }
    assert away == {"a": "wait", "b": "wait", "c": "wait", "d": "go_on"}


@pytest.mark.slow
def test_many_clients_hear_of_cells(here, data, capsys):
    given = ("--data", data, "--address", "127.0.0.1:7447", "--clients")
    assert call(*given, "9") == 0
    three_cells = output_of(capsys)
    assert "whole cells of 3 to 5 clients" in three_cells
    assert "the others continue" in three_cells and "could read" not in three_cells


@pytest.mark.slow
def test_as_many_cells_as_may_be_corrupt_and_one_wait_for_all(here, data, capsys):
    given = ("--data", data, "--clients", "7", "--address", "127.0.0.1:7447")
    assert call(*given) == 0
    assert "needs 2 of 2 whole cells of clients" in (note := output_of(capsys))
    assert "(federation.corrupt_cells)" in note


@pytest.mark.slow
def test_cells_that_no_round_could_be_over_are_refused(here, data, capsys):
    assert call("--data", data, "--clients", "7", "--address", "127.0.0.1:7447") == 0
    settings = here / "federation.toml"
    text = settings.read_text()
    settings.write_text(text.replace("[federation]", "[federation]\ncorrupt_cells = 2", 1))
    assert call("federation.toml", "--clients", "7", "--into", "others") == 2
    assert "Set federation.corrupt_cells = 1" in " ".join(capsys.readouterr().err.split())
    assert not (here / "others").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "go_on", "note"),
    [
        ("a,b,c", '"a", "b", "c"', 'At least 3 must have client.when_away = "wait"'),
        ("a,b,c,d", '"c", "d"', "leaves 2 clients that rounds wait for. At least 3"),
        ("a,b,c,d", '"e"', "parties.go_on: 'e' is not one of the clients"),
    ],
)
def test_too_few_that_wait_make_no_kit(here, data, clients, go_on, note, capsys):
    guests(here, data, clients, go_on)
    assert call("federation.toml") == 2
    assert note in " ".join(capsys.readouterr().err.split())
    assert not (here / "kits").exists()


@pytest.mark.slow
def test_guests_do_not_count_to_the_fewest_clients(here, data, capsys):
    guests(here, data, "a,b,c,d,e", '"d"', least=5)
    assert call("federation.toml") == 2
    note = " ".join(capsys.readouterr().err.split())
    assert "leaves 4 clients" in note and "Set rounds.minimum_clients = 4" in note


@pytest.mark.slow
def test_no_client_is_a_guest_where_no_client_is_waited_for(here, data, capsys):
    guests(here, data, "a,b,c,d", '"d"')
    path = here / "federation.toml"
    text = path.read_text().replace('key_holder = "authority"', 'key_holder = "members"')
    path.write_text(text)
    assert call("federation.toml") == 2
    assert "no client is required in rounds" in " ".join(capsys.readouterr().err.split())
