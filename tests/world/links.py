"""Links that do to a client what a network or a hostile coordinator might do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from blake3 import blake3
from world.clock import DEADLINE_SECONDS

from fedrec.errors import MalformedUpdate
from fedrec.identity.identity import Identity
from fedrec.ids import ClientId, RoundId
from fedrec.protection import Accumulator
from fedrec.wire.chunks import Blob
from fedrec.wire.link import Link
from fedrec.wire.messages import (
    Report,
    Reveal,
    RevealStatement,
    StepMessage,
    Task,
    UploadHeader,
)
from fedrec_authority.folder.opened_sums import OpenedSums

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


POISONED_ROUND = 3
Poison = Callable[[bytes], bytes]


class Poisoner(Forgetful):
    """Replaces its update of one round by each poison in turn, and signs what it made.

    All but the last have to be refused; whatever becomes of that one is the client's.
    """

    def __init__(self, link: Link, identity: Identity, poisons: Sequence[Poison]) -> None:
        super().__init__(link)
        self._identity = identity
        self._poisons = poisons

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        if header.round != POISONED_ROUND or not self._poisons:
            return self.link.submit_update(header, payload)
        *others, last = self._poisons
        self._poisons = ()
        for poison in others:
            with pytest.raises(MalformedUpdate):
                self._submit(header, poison(payload))
        return self._submit(header, last(payload))

    def _submit(self, header: UploadHeader, payload: bytes) -> bool:
        changed = replace(
            header, digest=blake3(payload).digest(), length=len(payload), signature=b""
        )
        signature = self._identity.sign(changed.statement())
        return self.link.submit_update(replace(changed, signature=signature), payload)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A falsified task, and the payloads that go with it."""

    task: Reveal
    payloads: dict[ClientId, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a coordinator has at hand against a victim among the contributors.

    Attributes:
        task: the honest task.
        victim: the header of the update that is to be opened.
        fetch: returns a contributor's update.
        make: returns an empty sum.
    """

    task: Reveal
    victim: UploadHeader
    fetch: Callable[[ClientId], bytes]
    make: Callable[[], Accumulator]

    def presenting(self, payloads: Iterable[bytes], headers: tuple[UploadHeader, ...]) -> Reveal:
        """Return the task with a list of contributions and the sum of some payloads."""
        total = self.make()
        for payload in payloads:
            total.add(payload)
        blob = Blob.of(total.finish())
        return replace(self.task, contributions=headers, sum=blob)


Trick = Callable[[Means], Attempt]


def alone(means: Means) -> Attempt:
    """The victim's update is the whole round."""
    payload = means.fetch(means.victim.client_id)
    return Attempt(task=means.presenting([payload], (means.victim,)))


def as_sum(means: Means) -> Attempt:
    """The list is honest, the sum is the victim's update."""
    payload = means.fetch(means.victim.client_id)
    return Attempt(task=means.presenting([payload], means.task.contributions))


def repeated(means: Means) -> Attempt:
    """The list is honest; all contributions are the victim's."""
    payload = means.fetch(means.victim.client_id)
    payloads = {header.client_id: payload for header in means.task.contributions}
    task = means.presenting(payloads.values(), means.task.contributions)
    return Attempt(task=task, payloads=payloads)


def relabelled(means: Means) -> Attempt:
    """As before, and the headers are the victim's under the others' names."""
    found = repeated(means)
    headers = tuple(
        replace(means.victim, client_id=header.client_id) for header in means.task.contributions
    )
    return replace(found, task=replace(found.task, contributions=headers))


def renamed(means: Means) -> Attempt:
    """Everything is honest but what the round is for."""
    kind = "evaluate" if means.task.kind == "train" else "train"
    return Attempt(task=replace(means.task, kind=kind))


def thinned_out(means: Means) -> Attempt:
    """The others' headers are of another kind of round, as if their vectors were empty."""
    kind = "train" if means.task.kind == "evaluate" else "evaluate"
    headers = tuple(
        header if header.client_id == means.victim.client_id else replace(header, kind=kind)
        for header in means.task.contributions
    )
    return Attempt(task=replace(means.task, contributions=headers))


TRICKS: tuple[Trick, ...] = (alone, as_sum, repeated, relabelled, renamed, thinned_out)


class Falsifier(Passing):
    """Falsifies the key authority's tasks, a trick each, and then lets the honest one through.

    Attributes:
        revealed: rounds for which a sum left the authority while tricks were played.
        declined: rounds for which it refused a sum then; the coordinator does not hear of it.
        tried: the tricks that were played.
        opened: what the authority had noted as opened when the last trick was over.
    """

    def __init__(
        self,
        link: Link,
        *,
        state: Path,
        make: Callable[[], Accumulator],
        tricks: tuple[Trick, ...] = TRICKS,
        from_round: int = 2,
    ) -> None:
        super().__init__(link)
        self._tricks = deque(tricks)
        self._state = state
        self._make = make
        self._from_round = from_round
        self._payloads: dict[ClientId, bytes] = {}
        self._playing = False
        self.revealed: list[RoundId] = []
        self.declined: list[RoundId] = []
        self.tried: list[str] = []
        self.opened: list[int] = []

    def next_task(self, *args: Any, **how: Any) -> Task:
        found = self.link.next_task(*args, **how)
        if self._playing:
            state = OpenedSums(self._state, read_only=True).state
            self.opened += [entry.round for entry in state.revealed]
        self._payloads, self._playing = {}, False
        task = found.task
        if not isinstance(task, Reveal) or task.round < self._from_round or not self._tricks:
            return found
        victim = task.contributions[0]
        trick = self._tricks.popleft()

        def fetch(contributor: ClientId) -> bytes:
            return self.link.contribution(args[0], args[1], task.round, contributor)

        attempt = trick(Means(task=task, victim=victim, fetch=fetch, make=self._make))
        self._payloads, self._playing = attempt.payloads, True
        self.tried.append(trick.__name__)
        return replace(found, task=attempt.task)

    def contribution(
        self, client_id: ClientId, run: str, round_id: RoundId, contributor: ClientId
    ) -> bytes:
        if contributor in self._payloads:
            return self._payloads[contributor]
        return self.link.contribution(client_id, run, round_id, contributor)

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        if self._playing:
            (self.declined if statement.refused else self.revealed).append(statement.round)
            return
        self.link.submit_reveal(statement, sealed)


class Misreporting(Passing):
    """Signs reports whose metrics are not those that it found.

    Args:
        who: signs them.
        rounds: in which it does; it reports nothing in the others where `silent`.
        bit: what is wrong with them.
    """

    def __init__(
        self, link: Link, who: Identity, rounds: Container[int], *, bit: int, silent: bool = False
    ) -> None:
        super().__init__(link)
        self._who, self._rounds, self._bit, self._silent = who, rounds, bit, silent

    def submit_report(self, report: Report) -> None:
        if report.round in self._rounds:
            if self._silent:
                return
            metrics = bytes([report.metrics[0] ^ self._bit]) + report.metrics[1:]
            report = replace(report, metrics=metrics)
            report = replace(report, signature=self._who.sign(report.statement()))
        self.link.submit_report(report)
