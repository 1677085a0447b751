"""The command: quick help, exit codes, one JSON object."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from client.support.fake_federation import World
from client.support.fake_link import down
from client.support.fake_parties import USERS

from fedrec.cli.main import main
from fedrec.data.reading import DataSettings
from fedrec.follower.patient_link import Stopped, StopSwitch
from fedrec.settings.schema import Settings
from fedrec.wire.messages import Finished

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    made.write_settings()
    monkeypatch.setattr("fedrec_client.app.open_link", lambda settings: made.link)
    return made


class Shown:
    """What a command printed, and its exit code."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


@pytest.fixture
def call(world: World, capsys: pytest.CaptureFixture[str]):
    def run(verb: str, *options: str) -> Shown:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["client", verb, str(world.folder / "fedrec.toml"), *options])
        shown = capsys.readouterr()
        return Shown(left.value.code or 0, shown.out, shown.err)

    yield run
    structlog.reset_defaults()


def test_help_imports_nothing_heavy():
    code = (
        "import sys, fedrec_client.cli; "
        "heavy = {'torch', 'tenseal', 'grpc', 'numpy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_to_its_end(world, call):
    world.whole_round(1, "count")
    found = call("run", "--json")
    assert found.code == 0, found.err
    shown = json.loads(found.out)
    assert (shown["version"], shown["reason"]) == (1, "done")
    assert re.search(r"^\d\d:\d\d:\d\d  round 1  published  counted", found.err, re.MULTILINE)


def test_lines_for_machines_have_the_run_and_nothing_empty(world, call, monkeypatch):
    monkeypatch.setenv("FEDREC_CLIENT__LOG_FORMAT", "json")
    world.whole_round(1, "count")
    found = call("run", "--json")
    assert found.code == 0, found.err
    lines = [json.loads(line) for line in found.err.splitlines()]
    assert not [line for line in lines if "_" in line["event"] or not all(line.values())]
    (published,) = (line for line in lines if line["event"] == "published")
    assert set(published) == {
        "event", "level", "timestamp", "run", "round", "detail", "bytes_up", "bytes_down",
    }  # fmt: skip
    assert published["run"] == json.loads(found.out)["run"]
    assert {line["run"] for line in lines if line["event"] in ("preparing", "joined")} == {
        published["run"]
    }


def test_the_last_line_names_validation_and_test(world, call):
    world.whole_round(1, "count")
    for number in range(2, 5):
        world.whole_round(number)
    found = call("run")
    assert found.code == 0, found.err
    last = found.out.splitlines()[-1]
    rates = r"HR@10 [01]\.\d{4} NDCG@10 [01]\.\d{4}"
    assert re.fullmatch(
        r"done: version 4; best on validation is version [1-3]: "
        rf"validation {rates}, test {rates} \(protocol full\)",
        last,
    )


def test_serving_reads_the_data_as_its_flags_say(world, call, monkeypatch):
    served: list[DataSettings] = []

    class Holder:
        def __init__(self, settings: Settings, *_: object, **__: object) -> None:
            served.append(settings.data)

    monkeypatch.setattr("fedrec_client.serve.model_holder.ModelHolder", Holder)
    monkeypatch.setattr("fedrec_client.serve.server.serve", lambda *_: False)
    assert call("serve", "--minimum-rating", "4", "--columns", "item,user,rating").code == 0
    assert (served[0].minimum_rating, served[0].columns) == (4.0, "item,user,rating")


def test_flags_go_before_the_file(world, call):
    assert call("run", "--data", "nowhere.csv").code == 2
    found = call("run", "--authority-key", "nowhere.json")
    assert found.code == 5
    assert "nowhere.json" in found.err


def test_a_failed_run(world, call):
    world.link.script.append(lambda: Finished(reason="no clients", failed=True))
    assert call("run").code == 1


def test_a_plan_that_the_settings_contradict(world, call):
    path = world.folder / "fedrec.toml"
    path.write_text(path.read_text().replace("dim = 4", "dim = 8"))
    found = call("run", "--json")
    assert found.code == 5
    assert json.loads(found.out)["error"] == "plan_mismatch"


@pytest.fixture
def exposing(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The same client in a federation whose coordinator reads pair counts."""
    plan = {"algorithm": {"name": "ease"}, "update": {"structure": "dense"}}
    made = World(world.folder, protection="none", **plan)
    monkeypatch.setattr("fedrec_client.app.open_link", lambda settings: made.link)
    path = world.folder / "fedrec.toml"
    text = path.read_text().replace("dim = 4", 'name = "ease"')
    text = text.replace('key_holder = "members"', 'name = "none"')
    path.write_text(text + '[update]\nstructure = "dense"\n')
    return made


def test_exposing_users_takes_a_flag_of_the_client(exposing, call):
    exposing.whole_round(1, "count")
    refused = call("run", "--json")
    assert refused.code == 5
    shown = json.loads(refused.out)
    assert shown["error"] == "refused"
    assert "which pairs of items each client's users hold" in shown["message"]
    assert "submit_update" not in exposing.link.calls
    assert call("run", "--accept-exposure").code == 0


def test_a_client_that_nobody_listed_waits(world, call):
    listed = world.epoch
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])
    asked: list[str] = []

    def decide(name: str) -> None:
        asked.append(name)
        if asked.count("federation") == 3:
            world.epoch = listed

    world.link.before = decide
    found = call("run")
    assert found.code == 0
    assert f"fedrec keys roster admit {world.identity.client_id[:16]}" in found.err
    assert found.err.count("waiting_to_join") == 1
    assert "apply" not in asked, "it was given a certificate without an invitation"


def test_waiting_to_join_can_be_interrupted(world, call):
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])

    def stop(name: str) -> None:
        if world.link.calls.count("federation") == 3:
            raise Stopped

    world.link.before = stop
    assert call("run").code == 130


def test_an_unreachable_coordinator(world, call):
    world.link.before = down(world, "federation", 5)
    assert call("run", "--give-up-after", "1").code == 3


def test_interrupted_it_says_how_to_go_on(world, call):
    def stop(name: str) -> None:
        if name == "next_task":
            raise Stopped

    world.link.before = stop
    found = call("run")
    assert found.code == 130
    assert "Go on with: fedrec" in found.err


def test_a_new_run_is_not_asked_for_again(world, call, monkeypatch):
    """Only while it has not been used: then the same command goes on waiting."""
    monkeypatch.setattr(sys, "argv", ["fedrec", "client", "run", "a b.toml", "--new-run"])

    def stop_at(moment: str) -> None:
        def stop(name: str) -> None:
            if name == moment:
                raise Stopped

        world.link.before = stop

    listed = world.epoch
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])
    stop_at("federation")
    hint = "Go on with: fedrec client run 'a b.toml'"
    assert f"{hint} --new-run\n" in call("run", "--new-run").err
    world.epoch = listed
    stop_at("next_task")
    assert f"{hint}\n" in call("run", "--new-run").err


def test_recommendations(world, call):
    world.whole_round(1, "count")
    world.whole_round(2)
    call("run")
    found = call("recommend", "--user", USERS[0], "-n", "2")
    assert found.code == 0, found.err
    assert found.out.count("Film") == 2
    found = call("recommend", "--user", USERS[0], "--latest", "--json")
    assert json.loads(found.out)["version"] == 2
    assert call("recommend", "--user", "mallory").code == 2


def test_the_identity_is_made_and_shown(world, call):
    shown = json.loads(call("identity", "--json").out)
    assert shown["client_id"] == world.identity.client_id
    assert Path(shown["public_identity"]).exists()


def test_signals_work_the_switch():
    stop = StopSwitch()
    before = signal.getsignal(signal.SIGTERM)
    with stop.on_signals():
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
