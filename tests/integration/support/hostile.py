"""A coordinator that wants to read one client's update, as a client of it would see it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from integration.support.links import DEADLINE_SECONDS, Passing

from fedrec.identity.identity import Identity
from fedrec.ids import ClientId, RoundId
from fedrec.protection import Accumulator
from fedrec.wire.chunks import Blob
from fedrec.wire.link import Link
from fedrec.wire.messages import Reveal, RevealStatement, Task, UploadHeader
from fedrec_client.private_store import PrivateStore

__all__ = ["TRICKS", "Falsifier", "Liars", "Silence", "Trick"]


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
        holder: the key holder that is asked.
        fetch: returns a contributor's update.
        make: returns an empty sum.
    """

    task: Reveal
    victim: UploadHeader
    holder: ClientId
    fetch: Callable[[ClientId], bytes]
    make: Callable[[], Accumulator]

    def presenting(self, payloads: Iterable[bytes], headers: tuple[UploadHeader, ...]) -> Reveal:
        """Return the task with a list of contributions and the sum of some payloads."""
        total = self.make()
        for payload in payloads:
            total.add(payload)
        blob = Blob.of(total.finish())
        return replace(
            self.task, contributions=headers, sum_length=blob.length, sum_digest=blob.digest
        )


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
    """The list is honest; all contributions but the key holder's own are the victim's."""
    payload = means.fetch(means.victim.client_id)
    payloads = {header.client_id: payload for header in means.task.contributions}
    payloads[means.holder] = means.fetch(means.holder)
    task = means.presenting(payloads.values(), means.task.contributions)
    return Attempt(task=task, payloads=payloads)


def relabelled(means: Means) -> Attempt:
    """As before, and the headers are the victim's under the others' names."""
    found = repeated(means)
    headers = tuple(
        header
        if header.client_id == means.holder
        else replace(means.victim, client_id=header.client_id)
        for header in means.task.contributions
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
    """Falsifies a key holder's tasks, a trick each, and then lets the honest one through.

    Attributes:
        revealed: rounds for which a statement left the client while tricks were left.
        tried: the tricks that were played.
        opened: what the client had noted as opened when the last trick was over.
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
        self.tried: list[str] = []
        self.opened: list[int] = []

    def next_task(
        self, client_id: ClientId, run: str, version: RoundId, *, wait_seconds: float
    ) -> Task:
        found = super().next_task(client_id, run, version, wait_seconds=wait_seconds)
        if self._playing:
            state = PrivateStore(self._state, read_only=True).state
            self.opened += [entry.round for entry in state.revealed]
        self._payloads, self._playing = {}, False
        task = found.task
        if not isinstance(task, Reveal) or task.round < self._from_round or not self._tricks:
            return found
        victim = next(h for h in task.contributions if h.client_id != client_id)
        trick = self._tricks.popleft()

        def fetch(contributor: ClientId) -> bytes:
            return self.link.contribution(client_id, run, task.round, contributor)

        attempt = trick(
            Means(task=task, victim=victim, holder=client_id, fetch=fetch, make=self._make)
        )
        self._payloads, self._playing = attempt.payloads, True
        self.tried.append(trick.__name__)
        return replace(found, task=attempt.task)

    def contribution(
        self, client_id: ClientId, run: str, round_id: RoundId, contributor: ClientId
    ) -> bytes:
        if contributor in self._payloads:
            return self._payloads[contributor]
        return super().contribution(client_id, run, round_id, contributor)

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        if self._playing:
            self.revealed.append(statement.round)
        super().submit_reveal(statement, sealed)


class Chosen:
    """The first key holder that is asked for a role in a round, whoever that is."""

    def __init__(self, role: str, round_id: int) -> None:
        self._role = role
        self._round = round_id
        self._lock = threading.Lock()
        self.who: ClientId | None = None

    def is_meant(self, task: Task, client_id: ClientId) -> bool:
        """Tell whether this client is the one, now that it got a task."""
        work = task.task
        fits = isinstance(work, Reveal) and (work.role, work.round) == (self._role, self._round)
        with self._lock:
            if fits and self.who is None:
                self.who = client_id
            return fits and self.who == client_id


class Silence:
    """Makes the first key holder of a role say nothing until it is released."""

    def __init__(self, role: str, round_id: int) -> None:
        self.chosen = Chosen(role, round_id)
        self.released = threading.Event()

    def __call__(self, link: Link) -> Link:
        silence = self

        class Silent(Passing):
            def next_task(
                self, client_id: ClientId, run: str, version: RoundId, *, wait_seconds: float
            ) -> Task:
                found = super().next_task(client_id, run, version, wait_seconds=wait_seconds)
                if silence.chosen.is_meant(found, client_id):
                    assert silence.released.wait(DEADLINE_SECONDS)
                return found

        return Silent(link)


class Liars:
    """Makes the first key holder of a role sign something else than it found."""

    def __init__(self, role: str, round_id: int, identities: dict[ClientId, Identity]) -> None:
        self.chosen = Chosen(role, round_id)
        self._identities = identities
        self.lies: list[RevealStatement] = []

    def __call__(self, link: Link) -> Link:
        liars = self

        class Lying(Passing):
            lie = False

            def next_task(
                self, client_id: ClientId, run: str, version: RoundId, *, wait_seconds: float
            ) -> Task:
                found = super().next_task(client_id, run, version, wait_seconds=wait_seconds)
                self.lie = liars.chosen.is_meant(found, client_id)
                return found

            def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
                if self.lie:
                    statement = liars.falsify(statement)
                super().submit_reveal(statement, sealed)

        return Lying(link)

    def falsify(self, statement: RevealStatement) -> RevealStatement:
        """Return another statement, signed by the same client."""
        changed = replace(statement, aggregate_tag=bytes(len(statement.aggregate_tag)))
        signature = self._identities[statement.client_id].sign(changed.statement())
        self.lies.append(replace(changed, signature=signature))
        return self.lies[-1]
