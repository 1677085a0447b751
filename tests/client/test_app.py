"""A client's start: what may be interrupted, and what is told when the data is missing."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from client.support.fake_federation import World

from fedrec.arithmetic import Arithmetic, arithmetic_of
from fedrec.errors import FolderInUse, PlanMismatch, SettingsError, VersionMismatch
from fedrec.follower.patient_link import Stopped, StopSwitch
from fedrec.training.learner import Learner
from fedrec_client import connecting


def test_the_first_interrupt_ends_the_warm_up(tmp_path, monkeypatch):
    world = World(tmp_path)
    compiling, released = threading.Event(), threading.Event()

    def compile_for_ever(learner: Learner) -> None:
        compiling.set()
        released.wait()

    def interrupt() -> None:
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


def world_in(folder: Path) -> World:
    """Return a coordinator in a folder of its own."""
    folder.mkdir()
    return World(folder)


def _refuse(called: str) -> None:
    if called == "federation":
        raise PlanMismatch("The plan is another one.")


def test_a_coordinator_that_does_not_hear_a_goodbye_keeps_nobody(tmp_path, monkeypatch):
    def missing(client_id: str, code: str) -> None:
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

    def killed(called: str) -> None:
        if called == "next_task":
            with pytest.raises(FolderInUse):
                world.app().run()
            raise KeyboardInterrupt

    world.link.before = killed
    with pytest.raises(KeyboardInterrupt):
        world.app().run()
    assert world.link.goodbyes == []
