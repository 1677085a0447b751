"""The command: quick help, exit codes, one JSON object."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import structlog
from client.fake_federation import USERS, World
from typer.testing import CliRunner

from fedrec.errors import SettingsError
from fedrec.wire.messages import Finished
from fedrec_client.cli import app
from fedrec_client.stopping import Stopped, StopSwitch

runner = CliRunner()


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Commands send the log to their stderr, which the runner closes."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    loading = ModuleType("fedrec.config.loading")
    made.overrides = {}  # type: ignore[attr-defined]

    def load(path: Path, overrides: dict[str, object]) -> Any:
        if path.name == "bad.toml":
            raise SettingsError("Two problems.", problems=("one", "two"))
        made.overrides = overrides  # type: ignore[attr-defined]
        return made.settings()

    loading.load_settings = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedrec.config.loading", loading)
    monkeypatch.setattr("fedrec_client.app.open_link", lambda settings: made.link)
    return made


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedrec_client.cli; "
        "heavy = {'torch', 'tenseal', 'grpc', 'numpy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_to_its_end(world: World) -> None:
    world.whole_round(1, "count")
    found = runner.invoke(app, ["run", "fedrec.toml", "--json", "--state", "x", "--device", "cpu"])
    assert found.exit_code == 0, found.output
    shown = json.loads(found.stdout)
    assert shown["version"] == 1
    assert shown["reason"] == "done"
    assert world.overrides == {"client.state": "x", "client.device": "cpu"}  # type: ignore[attr-defined]
    assert "round 1" in found.stderr


def test_a_failed_run(world: World) -> None:
    world.link.script.append(lambda: Finished(reason="no clients", failed=True))
    assert runner.invoke(app, ["run", "fedrec.toml"]).exit_code == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_an_error_has_its_exit_code(world: World, as_json: bool) -> None:
    found = runner.invoke(app, ["run", "bad.toml", *(["--json"] if as_json else [])])
    assert found.exit_code == 2
    if as_json:
        assert json.loads(found.stdout)["error"] == "settings"
    else:
        assert "two" in found.stderr


def test_a_refusal_has_its_exit_code(world: World) -> None:
    round_ = world.play(1)
    assert round_.published is not None
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])
    found = runner.invoke(app, ["run", "fedrec.toml"])
    assert found.exit_code == 5
    assert "identity.pub.json" in found.stderr


def test_an_unreachable_coordinator(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from client.fake_federation import down

    world.link.before = down(world, "federation", 5)
    found = runner.invoke(app, ["run", "fedrec.toml", "--give-up-after", "1"])
    assert found.exit_code == 3


def test_interrupted_it_says_how_to_go_on(world: World) -> None:
    def stop(name: str) -> None:
        if name == "next_task":
            raise Stopped

    world.link.before = stop
    found = runner.invoke(app, ["run", "fedrec.toml"])
    assert found.exit_code == 130
    assert "Go on with: fedrec" in found.stderr


def test_recommendations(world: World) -> None:
    world.whole_round(1, "count")
    world.whole_round(2)
    runner.invoke(app, ["run", "fedrec.toml"])
    found = runner.invoke(app, ["recommend", "fedrec.toml", "--user", USERS[0], "-n", "2"])
    assert found.exit_code == 0, found.output
    assert found.stdout.count("Film") == 2
    found = runner.invoke(app, ["recommend", "fedrec.toml", "--user", USERS[0], "--json"])
    assert len(json.loads(found.stdout)["items"]) > 0
    found = runner.invoke(app, ["recommend", "fedrec.toml", "--user", "mallory"])
    assert found.exit_code == 2


def test_the_identity_is_made_and_shown(world: World) -> None:
    found = runner.invoke(app, ["identity", "fedrec.toml", "--json"])
    assert json.loads(found.stdout)["client_id"] == world.identity.client_id


def test_signals_work_the_switch() -> None:
    stop = StopSwitch()
    before = signal.getsignal(signal.SIGTERM)
    with stop.on_signals():
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
