"""A client's link to a coordinator that is no more than a world of the test."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fedrec_client
from fedrec.errors import Unreachable
from fedrec.follower.database import StateDatabase
from fedrec.follower.enrolment import enrol
from fedrec.follower.membership import Membership
from fedrec.identity.application import SignedApplication
from fedrec.identity.identity import Identity
from fedrec.ids import ClientId, RoundId
from fedrec.model.state import SharedState
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import (
    NOTHING,
    Application,
    FederationInfo,
    Finished,
    PublishedRound,
    Remembered,
    Report,
    RevealStatement,
    Snapshot,
    Task,
    UploadHeader,
    Wait,
)
from fedrec_client.state.private_store import PrivateStore

if TYPE_CHECKING:
    from world.fake_federation import World


class Killed(BaseException):
    """What kill -9 looks like from inside a test."""


class FakeLink:
    """The coordinator's side of every call; records whatever the client sends.

    Attributes:
        script: what `next_task` answers, one call after the other; then the run is finished.
        sent: every byte string that left the client.
        reveals, declined: what the key authority said of sums, by whether it opened them.
        uploads: (header, payload) of every submission, repeated ones included.
        gone: rounds whose sums are kept no more.
        offered, spare: snapshots that are here; the first is given that was not refused.
        refused: what the client said it refused, call by call.
        goodbyes: the codes of the errors with which it ended, empty where it was told to stop.
        before: called with the name of each call; may raise.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.script: deque[Callable[[], Any]] = deque()
        self.sent: list[bytes] = []
        self.uploads: list[tuple[UploadHeader, bytes]] = []
        self.reveals: list[tuple[RevealStatement, bytes]] = []
        self.declined: list[RevealStatement] = []
        self.reports: list[Report] = []
        self.snapshots: list[tuple[Report, bytes]] = []
        self.gone: set[int] = set()
        self.offered: Snapshot | None = None
        self.spare: list[Snapshot] = []
        self.refused: list[tuple[bytes, ...]] = []
        self.before: Callable[[str], None] = lambda name: None
        self.after: Callable[[str], None] = lambda name: None
        self.epoch_of_tasks: Callable[[], int] = lambda: 0
        self.calls: list[str] = []
        self.goodbyes: list[str] = []
        self.payload_of: Callable[[str, bytes], bytes] = lambda contributor, payload: payload

    def _called(self, name: str, *sent: bytes | str) -> None:
        self.calls.append(name)
        self.sent += [part if isinstance(part, bytes) else part.encode() for part in sent]
        self.before(name)

    def federation(self, client_id: str) -> FederationInfo:
        self._called("federation", client_id)
        self.world.caller = ClientId(client_id)
        return self.world.info()

    def catalogue(self, client_id: str) -> bytes:
        self._called("catalogue", client_id)
        return (self.world.folder / "catalogue.csv").read_bytes()

    def next_task(
        self,
        client_id: str,
        run: str,
        version: int,
        *,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        self._called("next_task", client_id, run, str(version))
        step = self.script.popleft() if self.script else lambda: Finished(reason="done")
        task = step()
        return Task(
            published_round=self.world.published_round, task=task, epoch=self.epoch_of_tasks()
        )

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        self._called("submit_update", header.statement(), header.signature, payload)
        self.uploads.append((header, payload))
        round_ = self.world.rounds[header.round]
        duplicate = header.client_id in round_.contributions
        round_.contributions[header.client_id] = (header, payload)
        self.after("submit_update")
        return duplicate

    def contribution(self, client_id: str, run: str, round_id: int, contributor: str) -> bytes:
        self._called("contribution", client_id, contributor)
        payload = self.world.rounds[round_id].contributions[contributor][1]
        return self.payload_of(contributor, payload)

    def round_sum(self, client_id: str, run: str, round_id: int) -> bytes:
        self._called("round_sum", client_id)
        return self.world.total(self.world.rounds[round_id])

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        self._called("submit_reveal", statement.statement(), statement.signature, sealed)
        if statement.refused:
            assert not sealed
            self.declined.append(statement)
        else:
            self.reveals.append((statement, sealed))

    def published(self, client_id: str, run: str, after: int) -> PublishedRound | None:
        self._called("published", client_id)
        later = [n for n, r in self.world.rounds.items() if n > after and r.published is not None]
        return None if not later or min(later) in self.gone else self._published(min(later))

    def _published(self, number: int) -> PublishedRound | None:
        return self.world.rounds[number].published

    def snapshot(
        self, client_id: str, run: str, after: int, refused: tuple[bytes, ...] = ()
    ) -> Snapshot | None:
        self._called("snapshot", client_id)
        self.refused.append(refused)
        offers = (found for found in (self.offered, *self.spare) if found is not None)
        return next((s for s in offers if Blob.of(s.blob).digest not in refused), None)

    def submit_report(self, report: Report) -> None:
        self._called("submit_report", report.statement(), report.signature)
        self.reports.append(report)

    def submit_snapshot(self, report: Report, blob: bytes) -> None:
        self._called("submit_snapshot", report.statement(), report.signature, blob)
        self.snapshots.append((report, blob))

    def apply(self, application: bytes) -> Application:
        self._called("apply", application)
        client_id = SignedApplication.from_json(application).identity.client_id
        epoch = self.world.epoch
        return Application(
            epoch=epoch.roster.epoch,
            listed=epoch.roster.contains(client_id),
            certificate=epoch.certificates.get(client_id, b""),
        )

    def goodbye(self, client_id: str, code: str) -> None:
        self.sent += [client_id.encode(), code.encode()]
        self.goodbyes.append(code)

    def close(self) -> None:
        self.calls.append("close")


def down(world: World, name: str, times: int) -> Callable[[str], None]:
    """Return a `before` hook: the named call is unreachable a given number of times."""
    left = [times]

    def hook(called: str) -> None:
        if called == name and left[0]:
            left[0] -= 1
            raise Unreachable("Nobody answers.")

    return hook


def version(world: World) -> int:
    """Return the version of the model that the client has on disk."""
    return PrivateStore(world.state, read_only=True).state.version


def follow(world: World) -> int:
    """Let the client catch up, and return the version that it ends with."""
    world.link.script.append(Wait)
    return world.app().run().version


def played(world: World) -> None:
    """Publish three rounds."""
    world.play(1, "count")
    world.play(2)
    world.play(3)


def crossed(world: World) -> None:
    """Let the federation go on with new keys after round 3."""
    played(world)
    world.epoch = world.make_epoch(epoch=2)


def make_snapshot(world: World, number: int, shared: SharedState | None = None) -> Snapshot:
    """Return what another member sends after a round, correct unless `shared` is given."""
    return sealed_snapshot(world, number, world.as_sent(shared or world.shared[number]))


def sealed_snapshot(world: World, number: int, raw: bytes) -> Snapshot:
    """Return a snapshot whose seal opens to any bytes, and for whose model members vouch."""
    assert world.rounds[number].published is not None
    maker = world.membership(world.puppets[2])
    return Snapshot(
        round=RoundId(number),
        epoch=1,
        statement=None,
        reports=tuple(world.report(number, puppet) for puppet in world.puppets[:2]),
        blob=maker.seal_of(RoundId(number)).seal_snapshot(raw),
    )


def attested(world: World, *makers: Identity, **changes: Any) -> Snapshot:
    """Return a snapshot of round 3 for which members of the new epoch vouch."""
    reports = []
    for maker in makers or world.puppets[:2]:
        changed = replace(world.report(3, maker), **changes)
        reports.append(replace(changed, signature=maker.sign(changed.statement())))
    seal = world.membership(world.puppets[0]).seal_of(RoundId(3))
    return Snapshot(
        round=RoundId(3),
        epoch=2,
        statement=None,
        reports=tuple(reports),
        blob=seal.seal_snapshot(world.as_sent(world.shared[3])),
    )


class KeyWatch:
    """Stands for the member that holds the key, and counts every use of it."""

    def __init__(self, member: Any, opened: list[bytes] | None = None) -> None:
        self._member = member
        self.opened: list[bytes] = [] if opened is None else opened

    def over(self, protection: Any) -> Any:
        return KeyWatch(self._member.over(protection), self.opened)

    def protect(self, vector: Any, name: bytes = b"") -> bytes:
        return self._member.protect(vector, name)  # type: ignore[no-any-return]

    def reveal(self, total: bytes, n_summands: int, names: Any = None) -> Any:
        self.opened.append(total)
        return self._member.reveal(total, n_summands, names)

    def close(self) -> None:
        self._member.close()


def put_watch(monkeypatch: pytest.MonkeyPatch) -> KeyWatch:
    """Put a watch on the key of the authority's revealer that is started."""
    watch = KeyWatch(None)

    def watched(*arguments: Any, **options: Any) -> Membership:
        membership = enrol(*arguments, **options)
        watch._member = membership.half
        return replace(membership, half=watch)  # type: ignore[arg-type]

    monkeypatch.setattr("fedrec_authority.opening.revealer.enrol", watched)
    return watch


def first_step(every: int) -> int:
    """Return the first of every n-th step: another one after each change of the client's code."""
    code = Path(fedrec_client.__path__[0]).rglob("*.py")
    return 1 + zlib.crc32(b"".join(path.read_bytes() for path in sorted(code))) % every


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Die at the so-and-so-many-th fsync, rename, or beginning or end of a commit."""
    left = [step]

    def pass_one() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def dying(real: Callable[..., Any], *, ends: bool) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            pass_one()
            found = real(*arguments)
            if ends:
                pass_one()
            return found

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "replace"), (StateDatabase, "write")):
            patch.setattr(owner, name, dying(getattr(owner, name), ends=owner is StateDatabase))
        yield
