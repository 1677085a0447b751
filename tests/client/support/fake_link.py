"""The coordinator's side of a federation in memory, call by call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedrec.errors import Unreachable
from fedrec.identity.application import SignedApplication
from fedrec.ids import ClientId
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
)

if TYPE_CHECKING:
    from client.support.fake_federation import World


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
    """Return a `before` hook: the named call finds nobody for so many times."""
    left = [times]

    def hook(called: str) -> None:
        if called == name and left[0]:
            left[0] -= 1
            raise Unreachable("Nobody answers.")

    return hook
