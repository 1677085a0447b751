"""One event loop for all coordinators, and federations that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from integration.support.bench import Bench
from integration.support.parties import Federation, Loop

from fedrec.config.schema import Plan

Found = Callable[..., Federation]


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Log errors only: a failing test shows them, not the life of three clients."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    """The loop on which coordinators live."""
    made = Loop.shared()
    yield made
    made.close()


@pytest.fixture
def found(tmp_path: Path, loop: Loop) -> Iterator[Found]:
    """Start a federation; it is stopped with the test, however the test ends.

    `prepare` is called with the bench before the coordinator starts; `bench` makes it.
    """
    started: list[Federation] = []

    def start(plan: Plan, n_clients: int = 3, **options: Any) -> Federation:
        folder = tmp_path / f"federation-{len(started)}"
        folder.mkdir()
        bench = options.pop("bench", Bench).make(folder, plan, n_clients)
        options.pop("prepare", lambda bench: None)(bench)
        started.append(Federation(bench, loop, **options))
        return started[-1]

    yield start
    for federation in started:
        federation.stop()
