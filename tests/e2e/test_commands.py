"""`fedrec coordinator run` and `fedrec client run` as people start them."""

import json
import shlex
import subprocess
import sys

import pytest
from world.clock import DEADLINE_SECONDS
from world.federation import made_data, prepare
from world.kits import WITHOUT

from fedrec.plan.schema import Plan

pytestmark = pytest.mark.slow

ROUNDS = 3


@pytest.fixture
def workspace(tmp_path):
    """The folders of three clients under encryption."""
    return folders(tmp_path, {"name": "bfv"}, total=ROUNDS)


def folders(folder, protection, *, total):
    """Write what a coordinator and three clients start from."""
    plan = Plan.model_validate(
        {
            "federation": {"name": "tests", "maximum_users": 64, "minimum_item_users": 6},
            "algorithm": {"dim": 4},
            "update": {"rank": 2},
            # No authority runs beside these commands: the papers' protocol.
            "protection": {"key_holder": "members", **protection},
            "rounds": {"total": total},
        }
    )
    return prepare(
        folder,
        plan,
        made_data(
            n_users=40, n_items=60, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
        ),
        n_clients=3,
    )


@pytest.mark.long
def test_a_federation_of_separate_commands(workspace, start, tmp_path):
    coordinator = start(
        tmp_path / "coordinator.log", "coordinator", "run", str(workspace.parties.coordinator),
        "--until-finished",
        missing=["torch", "fedrec_client", "pyarrow", "matplotlib", "phe", "gmpy2"],
    )  # fmt: skip
    address = json.loads(coordinator.first_line())["address"]

    def client(number):
        return start(
            tmp_path / f"client-{number}.log",
            "client", "run", str(workspace.parties.clients[number]),
            "--set", f"client.coordinator={address}", "--json",
        )  # fmt: skip

    interrupted = client(0)
    others = [client(1), client(2)]
    interrupted.wait_for("round 2  trained")
    interrupted.interrupt()
    assert interrupted.ended() == 130
    resumed = start(tmp_path / "resumed.log", *resume_command(interrupted))
    for command in (resumed, *others):
        assert command.ended() == 0, command.output
        outcome = json.loads(command.out)
        assert outcome["reason"] == "all rounds are published"
        assert outcome["version"] == ROUNDS + 2
    assert coordinator.ended() == 0, coordinator.output


@pytest.mark.long
def test_one_value_to_a_ciphertext_over_processes(start, tmp_path):
    protection = {"name": "paillier", "preset": "single-2048"}
    workspace = folders(tmp_path, protection, total=1)
    coordinator = start(
        tmp_path / "coordinator.log", "coordinator", "run", str(workspace.parties.coordinator),
        "--until-finished", missing=["torch", "fedrec_client", "phe", "tenseal"],
    )  # fmt: skip
    address = json.loads(coordinator.first_line())["address"]
    clients = [
        start(
            tmp_path / f"client-{number}.log", "client", "run", str(settings),
            "--set", f"client.coordinator={address}", "--json",
            missing=["fedrec_server", "phe", "tenseal"],
        )
        for number, settings in enumerate(workspace.parties.clients)
    ]  # fmt: skip
    for command in clients:
        assert command.ended() == 0, command.output
        assert json.loads(command.out)["version"] == 3
    assert coordinator.ended() == 0, coordinator.output


def resume_command(stopped):
    """Return the arguments of the command that a stopped client tells people to give."""
    (line,) = (line for line in stopped.output.splitlines() if "To resume: " in line)
    name, *arguments = shlex.split(line.partition("To resume: ")[2])
    assert name == "fedrec"
    return arguments


def test_an_interrupted_coordinator_says_how_to_go_on(workspace, start, tmp_path):
    call = ("coordinator", "run", str(workspace.parties.coordinator))
    first = start(tmp_path / "first.log", *call)
    run = json.loads(first.first_line())["run"]
    first.interrupt()
    assert first.ended() == 130, first.output
    assert resume_command(first) == list(call)
    second = start(tmp_path / "second.log", *resume_command(first))
    assert json.loads(second.first_line())["run"] == run
    # A container engine's way to stop is no interruption.
    second.process.terminate()
    assert second.ended() == 0, second.output
    assert "To resume" not in second.output


EACH = """
import importlib, pkgutil, fedrec_client, fedrec.protection
for package in (fedrec_client, fedrec.protection):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
"""
"""What a client may import, whatever its plan."""


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        (
            ("torch", "fedrec_client", "starlette", "uvicorn"),
            "import fedrec_server.app, fedrec_server.cli, fedrec.plan.layout\n"
            "import fedrec.protection.lattice, fedrec.protection.paillier_sums\n",
        ),
        (("fedrec_server", "fedrec_authority", "phe"), EACH),
    ],
    ids=["coordinator without a page", "client"],
)
def test_a_party_imports_nothing_of_others(missing, code):
    code = WITHOUT.format(missing=missing) + (
        f"{code}assert not [n for n in sys.modules if n.partition('.')[0] in {missing}]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
