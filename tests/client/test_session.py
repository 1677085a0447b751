"""A client's session from its start to its end."""

import json
import os
import signal
import threading

import pytest
from world.fake_federation import World
from world.fake_link import Killed, down, dying_at, first_step
from world.fake_parties import USERS

from fedrec.arithmetic import Arithmetic, arithmetic_of
from fedrec.errors import FolderInUse, PlanMismatch, RoundClosed, SettingsError, VersionMismatch
from fedrec.follower.patient_link import Stopped, StopSwitch
from fedrec.follower.round_journal import JOURNAL_FILE
from fedrec.model.state import PrivateState
from fedrec.model.tables import TableRoom, names_in, read_manifest
from fedrec.plan.planned_noise import mechanism_of
from fedrec.training.learner import Learner
from fedrec.wire.messages import Wait
from fedrec_client import connecting
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore


def stored(world):
    return PrivateStore(world.state, read_only=True)


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_a_run_goes_from_counting_to_the_end(tmp_path, protection):
    world = World(tmp_path, protection=protection)
    world.whole_round(1, "count")
    world.whole_round(2)
    world.whole_round(3)
    outcome = world.app().run()
    assert (outcome.reason, outcome.version, outcome.failed) == ("done", 3, False)
    state = stored(world).state
    assert state.version == 3
    assert state.staged is None
    assert state.private is not None
    assert stored(world).read(state.shared) == world.stored(3), "as the others have it"
    lines = [json.loads(line) for line in (world.state / JOURNAL_FILE).read_text().splitlines()]
    assert [(line["round"], line["outcome"]) for line in lines] == [
        (1, "counted"),
        (2, "counted"),
        (3, "counted"),
    ]
    assert all(line["bytes_up"] > world.protection.chosen.message_bytes for line in lines)


def test_the_best_model_is_kept_with_its_private_state(tmp_path):
    world = World(tmp_path, protection="none")
    world.whole_round(1, "count")
    for number in range(2, 6):
        world.whole_round(number)
    outcome = world.app().run()
    best = stored(world).state.best
    assert 1 <= best.round <= 4
    assert (outcome.validation, outcome.test) == (best.validation, best.test)
    assert (outcome.protocol, outcome.at) == ("full", 10)
    stored(world).read(best.shared)
    stored(world).read(best.private)


def test_a_model_without_our_users_is_not_the_best_one_for_them(tmp_path):
    world = World(tmp_path, protection="none")
    for number, kind in ((1, "count"), (2, "train"), (3, "train")):
        world.play(number, kind)
    world.link.script.append(Wait)
    assert world.app().run().best_round is None


def test_a_coordinator_that_restarts_is_waited_for(tmp_path):
    world = World(tmp_path)
    world.whole_round(1, "count")
    world.link.before = down(world, "next_task", 6)
    assert world.app().run().version == 1
    assert world.event_names().count("unreachable") == 1
    (reached,) = [event for event in world.events if event.name == "reached"]
    assert reached.detail == "after 6 failed calls"
    # Full jitter drawn at its maximum: .25 + .5 + 1 + 2 + 4 + 8 seconds.
    assert world.clock.now() - 1_700_000_000 >= 15.75


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_the_submission_the_same_bytes_go_out(tmp_path, moment):
    world = World(tmp_path)
    world.whole_round(1, "count")

    def kill(name):
        if name == "submit_update":
            raise Killed

    setattr(world.link, moment, kill)
    with pytest.raises(Killed):
        world.app().run()
    staged = stored(world).state.staged
    assert not staged.acknowledged
    kept = stored(world).read(staged.update)
    setattr(world.link, moment, lambda name: None)
    assert world.app().run().version == 1
    header, payload = world.link.uploads[-1]
    assert (header, payload) == (staged.header, kept)
    assert len(set(world.link.uploads)) == 1
    assert stored(world).state.private == staged.private


def test_killed_after_the_acknowledgement_the_update_is_committed(tmp_path):
    world = World(tmp_path)
    world.whole_round(1, "count")
    polls = []

    def kill(name):
        polls.append(name)
        if name == "next_task" and "submit_update" in polls:
            raise Killed

    world.link.before = kill
    with pytest.raises(Killed):
        world.app().run()
    staged = stored(world).state.staged
    assert staged.acknowledged
    world.link.before = lambda name: None
    world.app().run()
    assert len(world.link.uploads) == 1
    assert stored(world).state.private == staged.private


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 3])
def test_killed_at_every_write_the_run_ends_the_same(tmp_path, monkeypatch, every):
    """Dies at every n-th fsync, rename or commit, and is started again."""
    for step in range(first_step(every), 200, every):
        folder = tmp_path / str(step)
        folder.mkdir()
        world = World(folder)
        world.whole_round(1)
        try:
            with dying_at(monkeypatch, step):
                world.app().run()
            died = False
        except Killed:
            died = True
            world.app().run()
        by_round: dict[int, set[bytes]] = {}
        for header, payload in world.link.uploads:
            by_round.setdefault(header.round, set()).add(payload)
        assert all(len(payloads) == 1 for payloads in by_round.values()), step
        state = stored(world).state
        assert state.version == world.published_round, step
        assert state.staged is None
        assert (state.private is not None) == (len(world.link.uploads) > 0)
        if not died:
            assert step > 20
            return
    raise AssertionError("the run never got to its end")


RELEASE = {
    "algorithm": {"name": "ease"},
    "update": {"structure": "dense"},
    "rounds": {"total": 2},
    "privacy": {"mechanism": "gaussian", "expected_users": 12.0},
}


@pytest.mark.slow
@pytest.mark.long
def test_killed_at_every_write_a_part_of_a_release_is_drawn_and_paid_once(tmp_path, monkeypatch):
    """Noise that is drawn twice for the same counts would average out."""
    for step in range(1, 200):
        folder = tmp_path / str(step)
        folder.mkdir()
        world = World(folder, protection="bfv", **RELEASE)
        world.whole_round(1)
        world.whole_round(2)
        died = False
        try:
            with dying_at(monkeypatch, step):
                world.app().run()
        except Killed:
            died = True
            assert world.app().run().version == 2, step
        sent: dict[int, set[bytes]] = {}
        for header, payload in world.link.uploads:
            sent.setdefault(header.round, set()).add(payload)
        assert all(len(payloads) == 1 for payloads in sent.values()), step
        accounts = PrivacyLedger.of(stored(world)).accounts.values()
        paid = [mechanism_of(world.plan).cost] * len(USERS)
        # A draw is paid before it is kept, and what was not sent is not paid twice either.
        assert [each.spent for each in accounts] == paid or not sent, step
        if not died:
            assert set(sent) == {1, 2} and step > 20
            return
    raise AssertionError("the run never got to its end")


def test_a_late_update_is_rolled_back_when_the_round_is_published_without_it(tmp_path):
    world = World(tmp_path)
    world.play(1, "count")
    round_ = world.ask_to_train(2)
    world.link.script += [lambda: published_without_us(world, round_)]

    def closed(name):
        if name == "submit_update":
            raise RoundClosed("Round 2 is over.")

    world.link.before = closed
    assert world.app().run().version == 2
    state = stored(world).state
    assert (state.staged, state.private) == (None, None)
    assert "closed" in world.event_names()
    assert "not_counted" in (world.state / JOURNAL_FILE).read_text()


def published_without_us(world, round_):
    round_.contributions.pop(world.identity.client_id, None)
    world.publish(round_)
    return Wait()


def test_an_update_that_arrived_although_told_late_is_committed(tmp_path):
    """Only the list of contributions decides, not what the coordinator said on the way."""
    world = World(tmp_path)
    world.whole_round(1, "count")

    def closed(name):
        if name == "submit_update":
            raise RoundClosed("Round 1 is over.")

    world.link.after = closed
    world.app().run()
    assert stored(world).state.private is not None


def test_an_abandoned_round_is_rolled_back(tmp_path):
    world = World(tmp_path)
    world.play(1, "count")
    world.ask_to_train(2)
    world.whole_round(3)
    assert world.app().run().version == 3
    lines = [json.loads(line) for line in (world.state / JOURNAL_FILE).read_text().splitlines()]
    assert [(line["round"], line["outcome"]) for line in lines] == [
        (1, "not_counted"),
        (2, "abandoned"),
        (3, "counted"),
    ]
    header, _ = world.link.uploads[-1]
    assert header.round == 3


def test_a_round_that_was_given_up_changes_no_bits(tmp_path):
    sent = {}
    for name, numbers in (("disturbed", (2, 5)), ("undisturbed", (2, 3))):
        folder = tmp_path / name
        folder.mkdir()
        world = World(folder, protection="none")
        world.whole_round(1, "count")
        world.whole_round(numbers[0])
        for number in range(3, numbers[1]):
            world.ask_to_train(number)
        world.whole_round(numbers[1])
        assert world.app().run().version == numbers[1]
        sent[name] = [payload for header, payload in world.link.uploads if header.round > 2]
        last = stored(world).state.shared
        assert last is not None
        sent[name].append(stored(world).read(last))
    (once, model), (*tried, again, same_model) = sent["undisturbed"], sent["disturbed"]
    assert len(tried) == 2 and again == once and model == same_model
    # Repeated, it says the same: two sums over the same users tell no more than one.
    assert all(payload == once for payload in tried)


def test_a_round_that_was_answered_is_not_answered_again(tmp_path):
    world = World(tmp_path)
    world.play(1, "count")
    second = world.ask_to_train(2)
    world.ask_to_train(3)
    world.link.script.append(lambda: world.train(second))
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [2, 3]
    assert "stale" in world.event_names()


def test_empty_answers_do_not_make_a_busy_loop(tmp_path):
    world = World(tmp_path)
    world.link.script += [Wait] * 50
    world.app().run()
    assert world.clock.now() - 1_700_000_000 > 300


def test_stopping_once_saves_and_the_next_start_goes_on(tmp_path):
    world = World(tmp_path)
    stop = StopSwitch()
    world.whole_round(1, "count")

    def ask(name):
        if name == "submit_update":
            stop.request()

    world.link.before = ask
    with pytest.raises(Stopped):
        world.app(stop=stop).run()
    assert world.link.uploads == []
    world.link.before = lambda name: None
    assert world.app().run().version == 1
    assert len(world.link.uploads) == 1


def test_stopping_twice_stops_now():
    stop = StopSwitch()
    stop.request()
    with pytest.raises(KeyboardInterrupt):
        stop.request()


def test_a_pause_ends_when_asked_to_stop(tmp_path):
    world = World(tmp_path)
    stop = StopSwitch()
    world.link.script += [Wait] * 3

    def sleep(seconds):
        stop.request()

    with pytest.raises(Stopped):
        world.app(stop=stop, sleep=sleep).run()


def test_private_tables_in_files_give_the_same_bits(tmp_path, monkeypatch):
    """As for users whose tables outgrow client.memory_mib; the client starts anew for each."""
    kept = []
    for in_files in (False, True):
        folder = tmp_path / str(in_files)
        folder.mkdir()
        if in_files:
            monkeypatch.setattr(TableRoom, "is_enough_for", lambda self, n_users, widths: False)
        world = World(folder, protection="none")
        world.whole_round(1, "count")
        world.app().run()
        for number in (2, 3):
            world.whole_round(number)
            world.app().run()
        store = stored(world)
        assert store.state.private is not None
        loaded = store.read_private(store.state.private)
        assert loaded.in_files == in_files
        kept.append(PrivateState.of(loaded.arrays()).to_bytes())
        named = {path.name for path in world.state.iterdir() if path.suffix in (".bin", ".new")}
        assert named == store.state.files()
        blocks = {path.name for path in (world.state / "blocks").glob("*")} - {"lock"}
        tables = [read_manifest(world.state / ref.name) for ref in store.state.private_files()]
        assert blocks == set().union(*(names_in(own or {}) for own in tables))
        assert bool(blocks) == in_files
    assert kept[0] == kept[1]


def test_the_first_interrupt_ends_the_warm_up(tmp_path, monkeypatch):
    world = World(tmp_path)
    compiling, released = threading.Event(), threading.Event()

    def compile_for_ever(learner):
        compiling.set()
        released.wait()

    def interrupt():
        compiling.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Learner, "warm_up", compile_for_ever)
    stop = StopSwitch()
    presser = threading.Thread(target=interrupt, daemon=True)
    presser.start()
    try:
        with stop.on_signals(), pytest.raises(Stopped):
            world.app(stop=stop).run()
    finally:
        released.set()
        presser.join(10)
    assert "next_task" not in world.link.calls
    # Where it would have trained is known by then.
    found = json.loads((world.state / "environment.json").read_text())
    assert Arithmetic.from_json(found["arithmetic"]) == arithmetic_of("cpu")


def test_without_data_it_says_what_is_missing(tmp_path):
    world = World(tmp_path)
    settings = world.settings()
    without = settings.model_copy(update={"data": settings.data.model_copy(update={"path": None})})
    with pytest.raises(SettingsError, match=r"data\.path is missing: a client needs"):
        world.app(settings=without).run()


def test_it_says_goodbye_once_whatever_ends_it(tmp_path):
    finished = world_in(tmp_path / "finished")
    finished.app().run()
    assert finished.link.goodbyes == [""]
    assert finished.link.calls[-1] == "close", "the link is let go of after that"

    stopped, switch = world_in(tmp_path / "stopped"), StopSwitch()
    stopped.link.script.append(switch.request)
    with pytest.raises(Stopped):
        stopped.app(stop=switch).run()
    assert stopped.link.goodbyes == [""]

    failed = world_in(tmp_path / "failed")
    failed.link.before = _refuse
    with pytest.raises(PlanMismatch):
        failed.app().run()
    assert failed.link.goodbyes == ["plan_mismatch"]


def world_in(folder):
    """Return a coordinator in a folder of its own."""
    folder.mkdir()
    return World(folder)


def _refuse(called):
    if called == "federation":
        raise PlanMismatch("The plan is another one.")


def test_a_coordinator_that_does_not_hear_a_goodbye_keeps_no_client(tmp_path, monkeypatch):
    def missing(client_id, code):
        raise VersionMismatch("gRPC says UNIMPLEMENTED")

    world = world_in(tmp_path / "older")
    monkeypatch.setattr(world.link, "goodbye", missing)
    assert world.app().run().reason == "done"

    deaf, hung = world_in(tmp_path / "deaf"), threading.Event()
    monkeypatch.setattr(connecting, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(deaf.link, "goodbye", lambda client_id, code: hung.wait(60))
    try:
        assert deaf.app().run().reason == "done"
    finally:
        hung.set()


def test_who_is_killed_or_is_not_alone_in_its_folder_says_nothing(tmp_path):
    world = World(tmp_path)

    def killed(called):
        if called == "next_task":
            with pytest.raises(FolderInUse):
                world.app().run()
            raise KeyboardInterrupt

    world.link.before = killed
    with pytest.raises(KeyboardInterrupt):
        world.app().run()
    assert world.link.goodbyes == []
