"""`--cells` of the commands that train, and of `fedrec check`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import SMALL, sets

from fedrec_lab.reports.round_progress import StopRequest

from .conftest import Fedrec

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_figures")]

FLAGS = sets(*SMALL, "federation.minimum_item_users=3")
SAID = re.compile(
    r"(\d+) items are trained\. (\d+) more are held by 3 users, but not outside the largest cell "
    r"\(federation\.corrupt_cells = 1\)\."
)

COMMANDS = {
    "check": (),
    "simulate": (),
    "evaluate": ("--seeds", "1", "--protocols", "full", "--no-references"),
    "tune": ("--try", "algorithm.learning_rate=2"),
}
every_command = pytest.mark.parametrize(("command", "more"), COMMANDS.items(), ids=COMMANDS)


@pytest.fixture
def counted(fedrec, settings_file):
    """How many rows are trained and left out, as `fedrec check` counts them."""
    found = fedrec("check", settings_file, "--cells", 2, *FLAGS, "--json").json
    cells = found["cells"]
    assert cells["n_left_out"] > 0
    assert found["price"]["n_clients"] == 6
    assert found["price"]["expected"]["n_active"] == cells["n_trained"]
    assert fedrec("check", settings_file, *FLAGS, "--json").json["cells"] is None
    return cells["n_trained"], cells["n_left_out"]


def numbers(text: str) -> tuple[int, int]:
    (found,) = SAID.findall(text)
    return int(found[0]), int(found[1])


def tells_the_same(
    fedrec: Fedrec, settings_file: Path, counted: tuple[int, int], command: str, *more: str
) -> None:
    """Run a command and look at its sentence, and beside it at its JSON."""
    as_json = () if command == "check" else ("--json",)
    outcome = fedrec(command, settings_file, "--cells", 2, *more, *FLAGS, *as_json)
    assert outcome.code == 0, outcome.err
    assert numbers(outcome.out + outcome.err) == counted
    if as_json:
        assert outcome.json["cells"] == {"n_trained": counted[0], "n_left_out": counted[1]}


@every_command
def test_every_command_tells_the_same_rows(fedrec, settings_file, counted, command, more):
    tells_the_same(fedrec, settings_file, counted, command, *more)


@pytest.mark.long
def test_several_seeds_tell_the_same_rows(fedrec, settings_file, counted):
    tells_the_same(fedrec, settings_file, counted, "simulate", "--seeds", "1,2", "--jobs", "1")


def test_a_stopped_run_goes_on_with_its_cells_and_no_others(fedrec, settings_file, monkeypatch):
    whole = fedrec("simulate", settings_file, *FLAGS, "--cells", 2)
    with monkeypatch.context() as patched:
        patched.setattr(StopRequest, "requested", lambda self: True)
        stopped = fedrec("simulate", settings_file, *FLAGS, "--cells", 2)
    assert stopped.code == 130
    command = stopped.err.rpartition("To resume: fedrec ")[2].split()
    assert command[-2:] == ["--cells", "2"]
    for other in ([], ["--cells", "3"], ["--cells", "2", "--clients", "7"]):
        refused = fedrec(*command[:-2], *other)
        assert refused.code == 2
        assert "other cells" in refused.err
    resumed = fedrec(*command)
    assert resumed.code == 0, resumed.err
    models = [Path(out.splitlines()[-1], "model.safetensors") for out in (whole.out, resumed.out)]
    assert models[0].read_bytes() == models[1].read_bytes()
    alone = fedrec("simulate", settings_file, *FLAGS, "--clients", 6)
    other = Path(alone.out.splitlines()[-1], "model.safetensors")
    assert other.read_bytes() != models[0].read_bytes()
    one = fedrec("simulate", settings_file, *FLAGS, "--cells", 1)
    same = Path(one.out.splitlines()[-1], "model.safetensors")
    assert same.read_bytes() == other.read_bytes()


@every_command
def test_cells_that_cannot_be_and_cells_that_change_nothing(fedrec, settings_file, command, more):
    corrupt = ("--set", "federation.corrupt_cells=2")
    refused = fedrec(command, settings_file, "--cells", 2, *FLAGS, *more, *corrupt)
    assert refused.code == 2
    assert "federation.corrupt_cells = 2" in refused.err
    missing = fedrec(command, settings_file, "--cells", "nowhere.json", *FLAGS, *more)
    assert missing.code != 0
    assert "nowhere.json does not exist" in missing.err
    if command == "check":
        few = fedrec(command, settings_file, "--cells", 2, "--clients", 5, *FLAGS)
        assert few.code == 2
        assert "5 clients are too few for 2 cells" in few.err
    masks = ("--set", "protection.name=masks", "--set", "rounds.total=1")
    warned = fedrec(command, settings_file, "--cells", 2, *FLAGS, *more, *masks)
    assert (warned.out + warned.err).count("warning: --cells changes no row") == 1
    assert not SAID.search(warned.out + warned.err)
