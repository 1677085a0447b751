"""The key authority's process: deliver epochs to the coordinator and fetch applications from it.

The authority calls as an operator. It sends only public data and does not trust the answers.
Applications are signed with an invitation from the authority, and the coordinator's epoch is only a
number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fedrec.clock import Clock, SystemClock
from fedrec.durable import DiskFull
from fedrec.errors import (
    AuthorityIsOld,
    FedrecError,
    FolderInUse,
    InvitationUsed,
    KeysError,
    StorageError,
    Unreachable,
)
from fedrec.identity.application import SignedApplication
from fedrec.identity.cells import consents
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.public import PublicIdentity
from fedrec.plan.agreement import plan_from_json
from fedrec.wire.admin_link import RunStatus
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import FolderChanges, changing
from fedrec_authority.folder.recovery import read_state
from fedrec_authority.members.register import MemberRecord, MemberRegister

EventName = Literal[
    "coordinator found",
    "coordinator lost",
    "disk full",
    "folder in use",
    "epoch delivered",
    "epoch began",
    "epoch refused",
    "epoch missing",
    "applicant",
    "applicant refused",
    "member admitted",
    "member left",
    "awaiting",
    "members changed",
    "revealer joined",
    "revealer waits",
    "sum revealed",
    "reveal refused",
    "cell paused",
    "run finished",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityEvent:
    """An event, with `detail` as a sentence for people.

    Attributes:
        run: the run whose sums it is about, or empty.
        epoch: the epoch that it is about, or 0.
        round: the round that it is about, or 0.
        client_id: the applicant that it is about, or empty.
        seconds: the time that it took, or 0 if it was not measured.
    """

    name: EventName
    run: str = ""
    epoch: int = 0
    round: int = 0
    client_id: str = ""
    label: str = ""
    detail: str = ""
    seconds: float = 0.0


class DeliveryLink(Protocol):
    """The authority's calls to a coordinator. `AdminLink` implements them."""

    def status(self) -> RunStatus:
        """Return the run's status with its key epoch."""

    def applicants(self) -> list[SignedApplication]:
        """Return the applications that wait at the coordinator."""

    def install_epoch(self, bundle: bytes) -> bool:
        """Deliver an epoch. Return False while a round of the previous epoch must end first."""


class Delivery:
    """Polls the coordinator. Each event is reported once, when something changes.

    Args:
        folder: read at every poll and changed under a lock, so that `fedrec keys roster` also works
            meanwhile.
        link: the coordinator.
        tell: called with every event.
        clock: decides whether invitations have expired.
    """

    def __init__(
        self,
        folder: AuthorityFolder,
        link: DeliveryLink,
        tell: Callable[[AuthorityEvent], None],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._folder = folder
        self._link = link
        self._tell = tell
        self._last: dict[str, AuthorityEvent] = {}
        self._unreported: list[AuthorityEvent] = []
        self._waiting: tuple[tuple[PublicIdentity, bytes], ...] | None = None

    def look(self) -> bool:
        """Admit invited applicants and deliver a missing epoch.

        Return whether the coordinator answered.

        Raises:
            FedrecError: the folder cannot be used, or the coordinator refuses the operator.
        """
        try:
            found = self._link.status()
            self._once("line", "coordinator found", found.epoch, f"it is in epoch {found.epoch}")
            # Epochs of a folder restored from an older backup must not be delivered.
            is_newest = self._folder.last_epoch >= max(found.epoch, found.next_epoch)
            applications = self._link.applicants() if is_newest else []
            with changing(self._folder) as folder:
                newest = folder.newest
                if is_newest:
                    newest = self._hear(folder, applications, newest)
                membership, last = folder.membership, folder.last_epoch
            self._tell_all()
            self._deliver(found, newest, membership, last)
        except FolderInUse as error:
            again = f"{error} Retried until it is free."
            self._once("folder", "folder in use", 0, again)
        except DiskFull as error:
            # The data stored earlier is intact, and the next poll does the rest.
            self._once("disk", "disk full", 0, f"{error} Retried until there is space.")
        except (Unreachable, StorageError) as error:
            self._once("line", "coordinator lost", 0, error.message)
            return False
        else:
            self._last.pop("disk", None)
            self._last.pop("folder", None)
        finally:
            self._tell_all()
        return True

    def _tell_all(self) -> None:
        """Report events once the folder is unlocked, because a listener may be slow."""
        while self._unreported:
            self._tell(self._unreported.pop(0))

    def _deliver(
        self, found: RunStatus, newest: KeyEpoch | None, membership: MemberRegister, last: int
    ) -> None:
        """Deliver the newest epoch if it is missing, or report why not. The folder is unlocked."""
        number = last if newest is None else newest.roster.epoch
        if number == 0:
            return
        at = max(found.epoch, found.next_epoch)
        if membership.is_changed and newest is not None and newest.roster.members:
            detail = "run `fedrec keys rotate` to make an epoch with the new members"
            self._once("changed", "members changed", number, detail)
        else:
            self._last.pop("changed", None)
        if number < at and self._opened_here():
            raise AuthorityIsOld(
                f"The coordinator is in epoch {at}. {self._folder.path} only made epoch {number} "
                "and opened sums in it, so another folder of this authority has been used since.",
                remedy="Run only the newest folder. If this is the newest one left, back it up "
                "(`fedrec keys backup`) and restore the backup into a new folder (`fedrec "
                "keys restore`). Nothing was changed here.",
            )
        if number < at:
            detail = (
                f"the coordinator has epoch {at}, but this folder's last one is {number}: it was "
                "restored from an older backup. Compare `fedrec keys roster list` with the actual "
                f"members, then run `fedrec keys rotate --epoch {at + 1}`"
            )
            self._once("epoch", "epoch missing", at, detail)
        elif newest is None:
            detail = (
                f"the bundle of epoch {number} is not in this folder, because backups have no "
                "bundle. Compare `fedrec keys roster list` with the actual members, then run "
                "`fedrec keys rotate`"
            )
            self._once("epoch", "epoch missing", number, detail)
        elif number == found.epoch:
            members = len(newest.roster.members)
            noun = "member" if members == 1 else "members"
            self._once("epoch", "epoch began", number, f"{members} {noun}")
        elif number > at:
            self._install(newest.to_json(), number)

    def _opened_here(self) -> bool:
        """Return whether the revealer of this folder opened sums. A restored one has not."""
        store = read_state(self._folder) if self._folder.reveals else None
        return store is not None and store.state.opened is not None

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

    def _hear(
        self,
        folder: FolderChanges,
        applications: list[SignedApplication],
        newest: KeyEpoch | None,
    ) -> KeyEpoch | None:
        """Admit applicants whose invitations allow it, in one epoch. List the others for people.

        Return the newest epoch after that.
        """
        membership = folder.membership
        # Former members only come back after people compared their ids, whatever the invitation.
        known = {member.client_id: member for member in membership.members}
        federation = plan_from_json(membership.plan_json).federation.name
        waiting, admitted = [], membership
        now = int(self._clock.now())
        for application in applications:
            identity, consent = application.identity, application.consent
            member = known.get(identity.client_id)
            try:
                if member is not None:
                    admitted = self._accept_leave(application, member, admitted)
                    continue
                _check_word(application, federation)
                invitation = folder.invitations.take(application, now)
            except (KeysError, InvitationUsed) as error:
                self._about("applicant refused", identity, str(error))
                continue
            if invitation.confirm:
                waiting.append((identity, consent))
            else:
                admitted = admitted.with_member(identity, now, consent=consent)
                guest = ", a guest: rounds may proceed without it" if consent else ""
                self._about("member admitted", identity, f"invited as {invitation.name}{guest}")
        self._list(folder, tuple(waiting))
        is_interrupted = folder.is_interrupted(newest)
        if not admitted.is_changed and not is_interrupted:
            return newest
        begins = newest is not None and not newest.roster.members and not is_interrupted
        missing = folder.invitations.unused(now) if begins else ()
        if missing:
            # The first members begin together, so that no member's rounds lack the others.
            detail = "To begin without them, run `fedrec keys rotate`"
            self._once("missing", "awaiting", 0, f"{', '.join(missing)} to apply. {detail}")
        elif begins and (lacking := admitted.lacking_core()):
            self._once("missing", "awaiting", 0, lacking)
        elif begins or is_interrupted or admitted is not membership:
            made = folder.rotate(admitted)
            for identity in made.roster.unplaced:
                self._about("awaiting", identity, f"in no sum yet: {made.roster.why_unplaced()}")
            return made
        if admitted is not membership:
            folder.keep(admitted)
        return newest

    def _accept_leave(
        self, application: SignedApplication, member: MemberRecord, membership: MemberRegister
    ) -> MemberRegister:
        """Return the membership with a member as a guest, if it applied to become one.

        Raises:
            KeysError: the consent is not the member's own.
        """
        asks = application.is_leave and application.identity == member.identity
        if not asks or not member.is_present or member.consent:
            return membership
        _check_word(application, plan_from_json(membership.plan_json).federation.name)
        left = membership.with_guest(member.client_id, application.consent)
        detail = f"rounds no longer wait for it, as it asked. {left.too_few()}".strip()
        self._about("member left", member.identity, detail)
        return left

    def _list(
        self, folder: FolderChanges, waiting: tuple[tuple[PublicIdentity, bytes], ...]
    ) -> None:
        if waiting == self._waiting:
            return
        self._waiting = waiting
        folder.keep_applicants(waiting)
        for identity, _ in waiting:
            self._about(
                "applicant",
                identity,
                "compare the whole id with its owner by telephone, then run",
            )

    def _about(self, name: EventName, identity: PublicIdentity, detail: str) -> None:
        """Report an event about an applicant or member, once."""
        event = AuthorityEvent(
            name=name, client_id=identity.client_id, label=identity.label, detail=detail
        )
        if self._last.get(identity.client_id) != event:
            self._last[identity.client_id] = event
            self._unreported.append(event)

    def _once(self, about: str, name: EventName, epoch: int, detail: str) -> None:
        event = AuthorityEvent(name=name, epoch=epoch, detail=detail)
        before = self._last.get(about)
        if about == "line" and before is not None and before.name == name:
            return
        if before != event:
            self._last[about] = event
            self._unreported.append(event)


def _check_word(application: SignedApplication, federation: str) -> None:
    """Refuse a guest's consent that is not the applicant's own, or not for this federation."""
    key, consent = application.identity.signing_key, application.consent
    if (consent or application.is_leave) and not consents(federation, key, consent):
        raise KeysError(
            f"It wants to be a guest, but its signed consent is not for {federation}.",
            remedy="Its owner should check federation.name in the client's settings file.",
        )
