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
from fedrec.errors import SettingsError
from fedrec.training.learner import Learner
from fedrec_client.link.stopping import Stopped, StopSwitch


def test_the_first_interrupt_ends_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_without_data_it_says_what_is_missing(tmp_path: Path) -> None:
    world = World(tmp_path)
    settings = world.settings()
    without = settings.model_copy(update={"data": settings.data.model_copy(update={"path": None})})
    with pytest.raises(SettingsError, match=r"data\.path is missing: a client needs"):
        world.app(settings=without).run()
