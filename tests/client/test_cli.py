"""The client's commands and metrics."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import structlog
from world.fake_federation import World
from world.fake_link import down
from world.fake_parties import USERS

from fedrec.cli.main import main
from fedrec.data.reading import DataSettings
from fedrec.follower.events import ClientEvent
from fedrec.follower.patient_link import Stopped, StopSwitch
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished
from fedrec_client.metrics import ClientMetrics


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path)
    made.write_settings()
    monkeypatch.setattr("fedrec_client.app.open_link", lambda settings: made.link)
    return made


class Shown:
    """What a command printed, and its exit code."""

    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err


@pytest.fixture
def call(world, capsys):
    def run(verb, *options):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            words = ["recommend"] if verb == "recommend" else ["client", verb]
            main([*words, str(world.folder / "fedrec.toml"), *options])
        shown = capsys.readouterr()
        return Shown(left.value.code or 0, shown.out, shown.err)

    yield run
    structlog.reset_defaults()


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    code = (
        "import sys, fedrec_client.cli; "
        "heavy = {'torch', 'tenseal', 'grpc', 'numpy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_run_to_its_end(world, call):
    world.whole_round(1, "count")
    found = call("run", "--json")
    assert found.code == 0, found.err
    shown = json.loads(found.out)
    assert (shown["version"], shown["reason"]) == (1, "done")
    assert re.search(r"^\d\d:\d\d:\d\d  round 1  published  counted", found.err, re.MULTILINE)


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_last_line_names_validation_and_test(world, call):
    world.whole_round(1, "count")
    for number in range(2, 5):
        world.whole_round(number)
    found = call("run")
    assert found.code == 0, found.err
    last = found.out.splitlines()[-1]
    rates = r"HR@10 [01]\.\d{4} NDCG@10 [01]\.\d{4}"
    assert re.fullmatch(
        r"done: version 4\. Best on validation is version [1-3]: "
        rf"validation {rates}, test {rates} \(protocol full\)",
        last,
    )


@pytest.mark.slow
def test_serving_reads_the_data_as_its_description_says(world, call, monkeypatch):
    served: list[DataSettings] = []

    class Holder:
        def __init__(self, settings, *_, **__):
            served.append(settings.data)

    monkeypatch.setattr("fedrec_client.serve.model_holder.ModelHolder", Holder)
    monkeypatch.setattr("fedrec_client.serve.server.serve", lambda *_: False)
    description = world.folder / "data.csv.data.toml"
    description.write_text('minimum_rating = 4\ncolumns = "item,user,rating"\n')
    assert call("serve").code == 0
    assert (served[0].minimum_rating, served[0].columns) == (4.0, "item,user,rating")


@pytest.mark.slow
def test_flags_go_before_the_file(world, call):
    assert call("run", "--data", "nowhere.csv").code == 2
    found = call("run", "--set", "client.authority_key=nowhere.json")
    assert found.code == 5
    assert "nowhere.json" in found.err


@pytest.mark.slow
def test_a_failed_run(world, call):
    world.link.script.append(lambda: Finished(reason="no clients", failed=True))
    assert call("run").code == 1


@pytest.mark.slow
def test_a_plan_that_the_settings_contradict(world, call):
    path = world.folder / "fedrec.toml"
    path.write_text(path.read_text().replace("dim = 4", "dim = 8"))
    found = call("run", "--json")
    assert found.code == 5
    assert json.loads(found.out)["error"] == "plan_mismatch"


@pytest.fixture
def exposing(world, monkeypatch):
    """The same client in a federation whose coordinator reads pair counts."""
    plan = {"algorithm": {"name": "ease"}, "update": {"structure": "dense"}}
    made = World(world.folder, protection="none", **plan)
    monkeypatch.setattr("fedrec_client.app.open_link", lambda settings: made.link)
    path = world.folder / "fedrec.toml"
    text = path.read_text().replace("dim = 4", 'name = "ease"')
    text = text.replace('key_holder = "members"', 'name = "none"')
    path.write_text(text + '[update]\nstructure = "dense"\n')
    return made


@pytest.mark.slow
def test_exposing_users_takes_a_flag_of_the_client(exposing, call):
    exposing.whole_round(1, "count")
    refused = call("run", "--json")
    assert refused.code == 5
    shown = json.loads(refused.out)
    assert shown["error"] == "refused"
    assert "which pairs of items each client's users hold" in shown["message"]
    assert "submit_update" not in exposing.link.calls
    assert call("run", "--accept-exposure").code == 0


@pytest.mark.slow
def test_a_client_on_no_list_waits(world, call):
    listed = world.epoch
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])
    asked: list[str] = []

    def decide(name):
        asked.append(name)
        if asked.count("federation") == 3:
            world.epoch = listed

    world.link.before = decide
    found = call("run")
    assert found.code == 0
    assert f"fedrec keys roster admit {world.identity.client_id[:16]}" in found.err
    assert found.err.count("waiting_to_join") == 1
    assert "apply" not in asked, "it was given a certificate without an invitation"


@pytest.mark.slow
def test_waiting_to_join_can_be_interrupted(world, call):
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])

    def stop(name):
        if world.link.calls.count("federation") == 3:
            raise Stopped

    world.link.before = stop
    assert call("run").code == 130


@pytest.mark.slow
def test_an_unreachable_coordinator(world, call):
    world.link.before = down(world, "federation", 5)
    assert call("run", "--give-up-after", "1").code == 3


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on(world, call):
    def stop(name):
        if name == "next_task":
            raise Stopped

    world.link.before = stop
    found = call("run")
    assert found.code == 130
    assert "To resume: fedrec" in found.err


@pytest.mark.slow
def test_a_new_run_is_not_asked_for_again(world, call, monkeypatch):
    """Only while it has not been used: then the same command goes on waiting."""
    monkeypatch.setattr(sys, "argv", ["fedrec", "client", "run", "a b.toml", "--new-run"])

    def stop_at(moment):
        def stop(name):
            if name == moment:
                raise Stopped

        world.link.before = stop

    listed = world.epoch
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])
    stop_at("federation")
    hint = "To resume: fedrec client run 'a b.toml'"
    assert f"{hint} --new-run\n" in call("run", "--new-run").err
    world.epoch = listed
    stop_at("next_task")
    assert f"{hint}\n" in call("run", "--new-run").err


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_identity_is_made_and_shown(world, call):
    shown = json.loads(call("identity", "--json").out)
    assert shown["client_id"] == world.identity.client_id
    assert Path(shown["public_identity"]).exists()


@pytest.mark.slow
def test_signals_work_the_switch():
    stop = StopSwitch()
    before = signal.getsignal(signal.SIGTERM)
    with stop.on_signals():
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_call_left_to_itself_arrives_before_the_goodbye():
    """Else the coordinator takes the call for one of a client that is back."""
    stop, arrived = StopSwitch(), list[str]()

    def call():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        time.sleep(0.1)
        arrived.append("call")

    with stop.on_signals(), pytest.raises(Stopped):
        stop.aside(call)
    assert arrived == ["call"]


class Watched:
    """A client's metrics and what they say."""

    def __init__(self, folder):
        self.now = 1000.0
        self._metrics = ClientMetrics(folder, lambda: self.now)

    def tell(self, name, number=1, **note):
        event = ClientEvent(name=name, round=RoundId(number), **note)  # type: ignore[arg-type]
        self._metrics.take(event)

    def value(self, name, **labels):
        return self._metrics.registry.get_sample_value(name, labels)

    def label_names(self):
        samples = [s for family in self._metrics.registry.collect() for s in family.samples]
        return {label for sample in samples for label in sample.labels}


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def test_a_round_is_counted_once(watched):
    # Bytes in events are those since the last round was settled.
    watched.tell("training")
    watched.tell("trained", seconds=2.0)
    watched.tell("protected", seconds=0.5)
    watched.tell("sent", bytes_up=100)
    watched.now = 1060.0
    watched.tell("published", bytes_up=100, bytes_down=40)
    watched.tell("training", 2, bytes_down=5)
    watched.tell("sent", 2, bytes_up=100, bytes_down=5)
    watched.tell("abandoned", 2, bytes_up=110, bytes_down=6)
    assert watched.value("fedrec_client_sent_bytes_total") == 210
    assert watched.value("fedrec_client_received_bytes_total") == 46
    assert watched.value("fedrec_client_rounds_total", outcome="published") == 1
    assert watched.value("fedrec_client_rounds_total", outcome="abandoned") == 1
    assert watched.value("fedrec_client_training_duration_seconds_sum") == 2.0
    assert watched.value("fedrec_client_protecting_duration_seconds_sum") == 0.5
    assert watched.value("fedrec_client_model_version") == 1
    assert watched.value("fedrec_client_published_timestamp_seconds") == 1060.0
    assert watched.value("fedrec_client_events_total", event="training") == 2


def test_troubles_come_and_go(watched):
    def troubles():
        return (
            watched.value("fedrec_client_disk_full"),
            watched.value("fedrec_client_coordinator_reachable"),
        )

    assert troubles() == (0, 1)
    watched.tell("disk_full")
    watched.tell("unreachable")
    assert troubles() == (1, 0)
    watched.tell("reached")
    assert troubles() == (1, 1), "an answer makes no space"
    watched.tell("joined")
    assert troubles() == (0, 1)
    assert watched.value("fedrec_client_finished") == 0
    watched.tell("finished")
    assert watched.value("fedrec_client_finished") == 1


def test_counters_are_there_from_the_start_and_name_no_client(watched):
    # An increase from nothing to one is none to Prometheus: it has to see the zero.
    assert watched.value("fedrec_client_events_total", event="coordinator_went_back") == 0
    assert watched.label_names() == {"event", "outcome", "le", "version", "party"}
