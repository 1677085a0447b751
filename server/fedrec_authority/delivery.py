"""Bringing epochs to the coordinator and applicants from it: what the authority's process does.

The authority calls, as an operator. What it sends is public; what it gets, nobody
believes: applicants are listed for people to compare, and the coordinator's epoch is a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fedrec.errors import FedrecError, StorageError, Unreachable
from fedrec.identity.public import PublicIdentity
from fedrec.wire.admin_link import RunStatus
from fedrec_authority.folder import AuthorityFolder

__all__ = ["AuthorityEvent", "Coordinator", "Delivery", "EventName"]

EventName = Literal[
    "coordinator found",
    "coordinator lost",
    "epoch delivered",
    "epoch began",
    "epoch refused",
    "epoch missing",
    "applicant",
    "members changed",
    "revealer joined",
    "revealer waits",
    "sum revealed",
    "reveal refused",
    "run finished",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityEvent:
    """One thing that happened; `detail` is a sentence for people.

    Attributes:
        epoch: the epoch that it is about; 0 for none.
        round: the round that it is about; 0 for none.
        client_id: the applicant that it is about; empty for none.
    """

    name: EventName
    epoch: int = 0
    round: int = 0
    client_id: str = ""
    label: str = ""
    detail: str = ""


class Coordinator(Protocol):
    """What the authority asks of a coordinator; `AdminLink` is one."""

    def status(self) -> RunStatus:
        """Return how far the run is, and in which epoch."""

    def applicants(self) -> list[PublicIdentity]:
        """Return who asked to become a member."""

    def install_epoch(self, bundle: bytes) -> bool:
        """Hand in an epoch; False while a round goes on in the one before."""


class Delivery:
    """Looks again and again; each event is told once, when things change.

    Args:
        folder: read anew at every look, so that `fedrec keys roster` works beside it.
        link: the coordinator.
        tell: hears of every event.
    """

    def __init__(
        self, folder: AuthorityFolder, link: Coordinator, tell: Callable[[AuthorityEvent], None]
    ) -> None:
        self._folder = folder
        self._link = link
        self._tell = tell
        self._last: dict[str, AuthorityEvent] = {}
        self._applicants: tuple[PublicIdentity, ...] | None = None

    def look(self) -> bool:
        """Deliver what is missing and list applicants; tell whether the coordinator answered.

        Raises:
            FedrecError: the folder cannot be used, or the coordinator refuses the operator.
        """
        try:
            found = self._link.status()
            self._once("line", "coordinator found", found.epoch, f"it is in epoch {found.epoch}")
            self._deliver(found)
            self._list_applicants(self._link.applicants())
        except (Unreachable, StorageError) as error:
            self._once("line", "coordinator lost", 0, error.message)
            return False
        return True

    def _deliver(self, found: RunStatus) -> None:
        newest = self._folder.newest
        number = self._folder.last_epoch if newest is None else newest.roster.epoch
        if number == 0:
            return
        at = max(found.epoch, found.next_epoch)
        if self._folder.membership.is_changed:
            detail = "run `fedrec keys rotate` to make the epoch that says so"
            self._once("changed", "members changed", number, detail)
        else:
            self._last.pop("changed", None)
        if number < at:
            detail = (
                f"the coordinator has epoch {at}, this folder's last is {number}: it was restored "
                f"from an older backup. Compare `fedrec keys roster list` with who is a member, "
                f"then run `fedrec keys rotate --epoch {at + 1}`"
            )
            self._once("epoch", "epoch missing", at, detail)
        elif newest is None:
            detail = (
                f"the bundle of epoch {number} is not in this folder: backups hold none. Compare "
                "`fedrec keys roster list` with who is a member, then run `fedrec keys rotate`"
            )
            self._once("epoch", "epoch missing", number, detail)
        elif number == found.epoch:
            members = len(newest.roster.members)
            self._once("epoch", "epoch began", number, f"{members} members")
        elif number > at:
            self._install(newest.to_json(), number)

    def _install(self, bundle: bytes, number: int) -> None:
        try:
            began = self._link.install_epoch(bundle)
        except (Unreachable, StorageError):
            raise
        except FedrecError as error:
            self._once("epoch", "epoch refused", number, str(error))
            return
        waits = "" if began else "it begins after the round in progress"
        self._once("delivered", "epoch delivered", number, waits)

    def _list_applicants(self, found: list[PublicIdentity]) -> None:
        # What is listed already needs nobody's telephone call.
        members = set(self._folder.membership.present)
        waiting = tuple(identity for identity in found if identity not in members)
        if waiting == self._applicants:
            return
        known = set(self._applicants or ())
        self._folder.keep_applicants(waiting)
        self._applicants = waiting
        for identity in waiting:
            if identity not in known:
                self._tell(
                    AuthorityEvent(
                        name="applicant",
                        client_id=identity.client_id,
                        label=identity.label,
                        detail="compare the whole id with its owner by telephone, then run "
                        f"`fedrec keys roster add {identity.client_id[:16]}`",
                    )
                )

    def _once(self, about: str, name: EventName, epoch: int, detail: str) -> None:
        event = AuthorityEvent(name=name, epoch=epoch, detail=detail)
        before = self._last.get(about)
        if about == "line" and before is not None and before.name == name:
            return
        if before != event:
            self._last[about] = event
            self._tell(event)
