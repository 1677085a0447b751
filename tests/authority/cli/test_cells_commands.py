"""What `fedrec keys roster` tells of cells, and a paused one that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from authority.members.test_guests import World, people
from world.federation import rotate

from fedrec.cli.main import main
from fedrec.errors import KeysError
from fedrec.follower.stored_state import RunPin
from fedrec.identity.cell_rules import check
from fedrec.identity.document import write_public
from fedrec.ids import RoundId
from fedrec_authority.cli.roster import changed
from fedrec_authority.folder import backup as backup_module
from fedrec_authority.folder.authority_folder import STATE_FOLDER, AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore
from fedrec_authority.folder.opened_sums import OpenedSums

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "keys")


@pytest.fixture
def call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Call:
    monkeypatch.setenv("COLUMNS", "250")

    def run(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(["keys", "roster", *map(str, words), "--into", str(tmp_path / "keys")])
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out + shown.err

    return run


def listed(call: Call) -> dict[str, tuple[int, str]]:
    """Return each client's cell and presence by its label."""
    found = json.loads(call("list", "--json")[1])
    return {one["label"]: (one["cell"], one["presence"]) for one in found["clients"]}


def test_with_one_cell_nobody_meets_the_word(world, call):
    *core, guest, late = people(5)
    world.join(*core, guests=(guest,))
    world.join(late)
    code, told = call("list")
    assert code == 0 and "cell" not in told
    lines = {line.split()[2]: line for line in told.splitlines() if line.startswith("member")}
    assert "guest" in lines["client-3"] and "guest" not in lines["client-0"]
    assert "waits for others" in lines["client-4"]
    assert listed(call)["client-3"] == (1, "guest")
    assert listed(call)["client-4"] == (0, "waiting")


def test_a_newcomer_that_waits_is_named_when_it_is_added(world, capsys):
    *core, first, second, third = people(6)
    world.join(*core)
    assert world.roster.unplaced == ()
    told = []
    for late in (first, second):
        world.join(late)
        made = world.folder.newest
        assert made is not None
        found = changed(world.folder.path, "added it", made, world.folder.membership)
        told.append(str(list(found.text)[-1]))
    others = "newcomers are summed with at least 2 others that joined since the last cell was made"
    assert told[0] == f"In no sum yet: {first.public.label}; {others}: 2 more have to join."
    assert told[1].endswith(": 1 more has to join.") and second.public.label in told[1]
    assert world.roster.why_unplaced(joining=1) == "", "the third one makes a cell with them"
    world.join(third)
    assert world.roster.unplaced == ()


def test_with_two_cells_everybodys_is_listed(world, call):
    everybody = people(7)
    world.join(*everybody[:6], guests=everybody[6:])
    cells = world.partition.cells
    told = call("list")[1]
    for cell in cells:
        for client_id in cell.members:
            (line,) = (line for line in told.splitlines() if client_id in line)
            assert f"cell {cell.id}" in line
    labels = {who.client_id: who.public.label for who in everybody}
    found = listed(call)
    for cell in cells:
        assert all(found[labels[one]] == (cell.id, "core") for one in cell.core)
        assert all(found[labels[one]] == (cell.id, "guest") for one in cell.guests)


def pause(world: World, cell_id: int) -> None:
    """Put a cell's pause into the newest roster, as a refused sum will."""
    roster = world.roster
    cells = tuple(
        replace(cell, state="paused") if cell.id == cell_id else cell
        for cell in roster.partition.cells
    )
    paused = replace(roster, partition=replace(roster.partition, cells=cells))
    path = world.folder.private / "rosters" / f"{roster.epoch:08d}.json"
    write_public(path, paused.to_json())


def test_a_paused_cell_is_resumed_in_the_next_epoch(world, call):
    world.join(*people(6))
    pause(world, 2)
    assert "cell 2, paused" in call("list")[1]
    rotate(world.folder)
    before = world.roster
    assert [cell.state for cell in before.partition.cells] == ["active", "paused"]
    code, told = call("resume", 2)
    assert code == 0 and "resumed cell 2" in told
    check(before, world.roster)
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
    ("cell", "said"), [(1, "it is active"), (3, "there is none of that number")]
)
def test_a_cell_that_is_not_paused_is_told(world, call, cell, said):
    world.join(*people(6))
    before = world.roster
    code, told = call("resume", cell)
    assert code == KeysError.exit_code and world.roster == before
    words = " ".join(told.split())
    assert f"Cell {cell} is not paused: {said}" in words and "Paused cells: none" in words


def test_sizes_for_the_present_members_or_for_more(world, call):
    world.join(*people(6))
    found = json.loads(call("cells", "--json")[1])
    assert found["clients"] == 6 and [one["size"] for one in found["sizes"]] == [3, 4, 4]
    given = ("cells", "--clients", 100, "--corrupt-share", ".1")
    found = json.loads(call(*given, "--json")[1])
    assert [one["size"] for one in found["sizes"]] == [3, 10, 13]
    assert found["sizes"][1]["counted"]["10 %"] == pytest.approx(0.9**10)
    told = call(*given)[1]
    assert "2^-40" in told and "13" in told and "0.25" in told
    for wrong in ("2", "-.1", "x", "1/0"):
        code, told = call("cells", "--clients", 100, "--corrupt-share", wrong)
        assert code == 2 and "--corrupt-share" in told
    code, told = call("cells", "--clients", 2)
    assert code == 2 and "--clients" in told
