"""All parties change their release in mid-run: coordinator, clients one by one, key authority last.

The former releases are commits of this repository. Where its history is missing, these tests are
skipped.
"""

import io
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from world.clock import DEADLINE_SECONDS, poll
from world.kits import Kits, fedrec

from fedrec.formats import BACKUP_FILE
from fedrec_client.state.private_store import PrivateStore

ROOT = Path(__file__).parents[2]
PACKAGES = ("common", "server", "client")
RELEASED = "19549b224d9588141983dc9b97464edb4b340b30"
"""Release 0.1: wire 8.0, coordinator's schema 10, state 11, trainer 1, plans of form 1."""
STATE_10 = "31cbf9a7882a517caaa278a3811701960ba9c3d5"
"""The last commit whose states are files and no database. Otherwise as 0.1."""

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def former(request, tmp_path):
    """Return the command that starts another one with the code of a former commit."""
    code = tmp_path / "former"
    packed = subprocess.run(
        ["git", "archive", request.param, *PACKAGES], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip("the repository's history is not here")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(code, filter="data")
    return ("env", "PYTHONPATH=" + ":".join(str(code / name) for name in PACKAGES))


def published(kits):
    call = ["status", kits.address, "--operator", "authority/operator.pem", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "fedrec", *call],
        cwd=kits.path, timeout=DEADLINE_SECONDS, capture_output=True, check=False,
    )  # fmt: skip
    return json.loads(done.stdout)["published_round"] if not done.returncode else 0


def outcomes(kits):
    """Return what `check --upgrade` says of the states, by their place in the kits."""
    found = json.loads(fedrec(kits.path, "check", "--upgrade", ".", "--json"))["found"]
    return {one["path"]: (one["outcome"], one["format"]) for one in found if one["own"] == 11}


@pytest.mark.parametrize(
    ("former", "converted"),
    [(RELEASED, {"coordinator/state"}), (STATE_10, None)],
    indirect=["former"],
)
def test_a_run_goes_on_while_its_parties_are_upgraded(
    former, converted, start, tmp_path, monkeypatch
):
    # Its path has the trainer's version, which is another one here.
    monkeypatch.setenv("FEDREC_TRAINING__ACCELERATED", "false")
    kits = Kits(tmp_path, start, total=400, under=former)
    monkeypatch.delenv("FEDREC_TRAINING__ACCELERATED")
    running = {"coordinator": kits.coordinator(under=former)}
    for path in kits.path.rglob("client.toml"):
        path.write_text(path.read_text().replace("127.0.0.1:7447", kits.address))

    def begin(name, **how):
        if name == "coordinator":
            running[name] = kits.coordinator(f"{name}-{len(how)}", **how)
        elif name == "authority":
            running[name] = kits.authority(f"{name}-{len(how)}", **how)
        else:
            settings = str(kits.path / "clients" / name / "client.toml")
            running[name] = start(
                tmp_path / f"{name}-{len(how)}.log", "client", "run", settings, **how
            )

    def go_on(n_rounds=2):
        until = published(kits) + n_rounds

        def seen():
            for name, command in running.items():
                assert command.process.poll() is None, (name, command.output[-2000:])
            return published(kits) >= until

        poll(seen, f"round {until}")

    for name in ("authority", "a", "b", "c"):
        begin(name, under=former)
    go_on(3)
    # The command reads the folders while no process changes them.
    for command in running.values():
        command.process.send_signal(signal.SIGSTOP)
    try:
        states = outcomes(kits)
    finally:
        for command in running.values():
            command.process.send_signal(signal.SIGCONT)
    assert {path for path, (outcome, _) in states.items() if outcome == "converts"} == (
        converted or set(states)
    )
    for name in ("coordinator", "a", "b", "c", "authority"):
        # No party says that it ends: it is as if its machine went down in the middle of a round.
        running.pop(name).kill()
        begin(name)
        go_on()
    for command in running.values():
        command.interrupt()
    for command in running.values():
        command.ended()
    assert {outcome for outcome, _ in outcomes(kits).values()} == {"reads"}
    assert not list(kits.path.rglob(BACKUP_FILE))
    with PrivateStore(kits.path / "clients" / "a" / "state", read_only=True) as store:
        trained = store.state.provenance
        assert [one.difference for one in trained.accepted] == [
            "The training path is trainer 2, not trainer 1."
        ]
