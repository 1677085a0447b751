"""Links that do to a client what a network or a hostile coordinator might do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from world.clock import DEADLINE_SECONDS

from fedrec.ids import ClientId, RoundId
from fedrec.wire.link import Link
from fedrec.wire.messages import StepMessage, Task, UploadHeader

Wrap = Callable[[Link], Link]
T = TypeVar("T")


class Passing:
    """Hands every call on; subclasses change some."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)


class Forgetful(Passing):
    """Keeps from a client which update the coordinator has of it: a hostile one does not look."""

    def next_task(self, *args: Any, **how: Any) -> Task:
        found = self.link.next_task(*args, **how)
        return replace(found, latest=None)


class Gate:
    """Holds one client's message of one step of a round until the block is left or it is opened."""

    def __init__(self, round_id: int, step: str = "vector") -> None:
        self._what = (round_id, step)
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, link: Link) -> Link:
        gate = self

        class Held(Passing):
            def submit_masks(self, message: StepMessage) -> bool:
                gate.let_through(message.round, message.step)
                return self.link.submit_masks(message)

            def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
                gate.let_through(header.round, "vector")
                return self.link.submit_update(header, payload)

        return Held(link)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *ended: object) -> None:
        self.opened.set()

    def let_through(self, round_id: int, step: str) -> None:
        """Let everything through at once but what is held."""
        if (round_id, step) == self._what:
            self.reached.set()
            assert self.opened.wait(2 * DEADLINE_SECONDS)


class InTurn:
    """Lets the updates of a round arrive in an order that is chosen for each round."""

    def __init__(self, order: Callable[[RoundId], Sequence[int]]) -> None:
        self._order = order
        self._arrived: list[tuple[RoundId, int]] = []
        self._news = threading.Condition()

    def link_of(self, number: int) -> Wrap:
        """Return the wrapper of a client's link."""
        turns = self

        class Queued(Passing):
            def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
                turns.wait(header.round, number)
                found = self.link.submit_update(header, payload)
                turns.done(header.round, number)
                return found

        return Queued

    def wait(self, round_id: RoundId, number: int) -> None:
        order = list(self._order(round_id))
        before = {(round_id, other) for other in order[: order.index(number)]}
        with self._news:
            came = self._news.wait_for(lambda: before <= set(self._arrived), DEADLINE_SECONDS)
        assert came, f"the updates before client {number}'s never arrived"

    def done(self, round_id: RoundId, number: int) -> None:
        with self._news:
            self._arrived.append((round_id, number))
            self._news.notify_all()

    @property
    def arrived(self) -> list[tuple[RoundId, int]]:
        """Rounds and clients in the order of their acknowledgements."""
        return list(self._arrived)


class Acknowledged:
    """Remembers what a coordinator acknowledged, whatever happens to it afterwards."""

    def __init__(self) -> None:
        self.updates: set[tuple[RoundId, ClientId]] = set()

    def __call__(self, link: Link) -> Link:
        known = self.updates

        class Watched(Passing):
            def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
                found = self.link.submit_update(header, payload)
                known.add((header.round, header.client_id))
                return found

        return Watched(link)
