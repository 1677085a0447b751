"""The key authority's revealer, which follows a run and opens its sums."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from fedrec.clock import Clock, SystemClock
from fedrec.data import UserSplit
from fedrec.durable import DiskFull
from fedrec.errors import (
    AuthorityIsOld,
    CoordinatorWentBack,
    FedrecError,
    FolderInUse,
    KeysError,
    NotInRoster,
    RefusedError,
    Unreachable,
)
from fedrec.follower.catching_up import CatchingUp
from fedrec.follower.enrolment import enrol
from fedrec.follower.events import ClientEvent
from fedrec.follower.membership import Membership
from fedrec.follower.patient_link import Backoff, Meter, Stopped, StopSwitch, patient_link
from fedrec.follower.pull_loop import EpochChanged, PullLoop, RollbackDetection, Work, why_behind
from fedrec.follower.round_journal import AuditLog, RoundJournal
from fedrec.follower.shared_model import SharedModel
from fedrec.follower.stored_state import RunPin, users_digest
from fedrec.identity.public import read_authority_key, verify
from fedrec.ids import RoundId
from fedrec.plan.agreement import check_new_run, plan_from_json, plan_to_json
from fedrec.training.server_half import ServerHalf
from fedrec.wire.link import Link
from fedrec.wire.messages import Finished, PublishedRound, Reveal
from fedrec_authority.delivery import AuthorityEvent, EventName
from fedrec_authority.folder.authority_folder import STATE_FOLDER, AuthorityFolder
from fedrec_authority.folder.folder_changes import changing
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.folder.recovery import former_rosters
from fedrec_authority.opening.cell_counts import OpeningContext
from fedrec_authority.opening.sum_opening import SumOpening


def continue_chain(
    link: Link, membership: Membership, store: OpenedSums, folder: AuthorityFolder
) -> None:
    """Load the last statement before the first new one of a process or an epoch.

    A backup may be older. Members and the coordinator only accept a statement that follows the last
    one. Statements are on disk before they are sent, so a later one in the current epoch comes from
    another copy of this folder. Then the key is not used.

    Raises:
        AuthorityIsOld: the statement comes from an unknown revealer, or from a newer copy of this
            folder.
        BadSignature: the coordinator forged it.
    """
    head = store.state.head
    shown = link.federation(membership.client_id).statement
    if shown is None or (head is not None and head.sequence >= shown.sequence):
        return
    present = membership.roster
    rosters = (present, *former_rosters(folder, present))
    known = {one.revealer.client_id: one.revealer for one in rosters if one.revealer}
    signer = known.get(shown.client_id)
    if signer is None or (shown.federation, shown.run) != (present.federation, membership.run):
        raise AuthorityIsOld(
            f"Statement {shown.sequence}, on round {shown.round}, is from a revealer that "
            f"{folder.path} does not know.",
            remedy="Restore the newest backup of the authority (`fedrec keys restore`).",
        )
    verify(signer.signing_key, shown.statement(), shown.signature)
    if shown.epoch == membership.epoch:
        raise AuthorityIsOld(
            f"Statement {shown.sequence}, on round {shown.round} of epoch {shown.epoch}, is from "
            f"this key authority. The last one in {folder.path} is "
            f"{'none' if head is None else head.sequence}, so that is an older copy of the folder.",
            remedy="Start the newest copy. If it is lost, restore the backup (`fedrec keys "
            "restore`), which begins a new epoch.",
        )
    # Pauses that this folder knew about are in its rosters, or were resumed in one.
    known_before = head.paused if head is not None and head.epoch == shown.epoch else ()
    active = {cell.id for cell in present.partition.cells if cell.state == "active"}
    unknown = active.intersection(shown.paused).difference(known_before)
    if unknown:
        store.keep_paused(unknown)
    store.record_statement(shown)


_TOLD: dict[str, EventName] = {
    "joined": "revealer joined",
    "waiting_for_snapshot": "revealer waits",
    "revealed": "sum revealed",
    "reveal_refused": "reveal refused",
    "cell_paused": "cell paused",
    "finished": "run finished",
}
_JOIN_SECONDS = 10.0


class Revealer:
    """Open sums in a separate thread until closed.

    Args:
        folder: the authority's folder. Members and plan are read again for every epoch.
        link: the coordinator.
        tell: called with events, in the revealer's thread.
        new_run: whether to leave its earlier run for the coordinator's run.
        clock: the clock.
        sleep: the function that waits.
        jitter: draws from 0 to 1.
    """

    def __init__(
        self,
        folder: AuthorityFolder,
        link: Link,
        tell: Callable[[AuthorityEvent], None],
        *,
        new_run: bool = False,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._folder = folder
        self._state = folder.revealer.folder / STATE_FOLDER
        self._new_run = new_run
        self._clock = clock or SystemClock()
        self._tell = tell
        self._stop = StopSwitch()
        self._backoff = Backoff(self._stop, sleep=sleep, jitter=jitter)
        meter = Meter()
        self._bare_link = link
        # The delivery of epochs reports an absent coordinator.
        self._link = patient_link(link, meter, self._backoff, lambda error: None)
        self._journal = RoundJournal(self._state, self._clock, meter, self._on_event)
        self._epoch, self._tries, self._joined = 0, 0, ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="revealer", daemon=True)

    def start(self) -> None:
        """Start the thread and return at once."""
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Return after a number of seconds, or raise the error that ended the revealer.

        Raises:
            FedrecError: the revealer cannot, or must not, continue.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop the thread at any point. Opened sums are on disk."""
        with suppress(Stopped, KeyboardInterrupt):
            self._stop.request()
        self._bare_link.close()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            with OpenedSums(self._state, setting="--into") as store:
                reported = ""
                while True:
                    try:
                        self._journal.write()
                        self._work(store)
                        self._tries, reported = 0, ""
                        continue
                    except (DiskFull, FolderInUse) as error:
                        # Statements are on disk, and work resumes from there.
                        if error.message != reported:
                            reported = error.message
                            is_full = isinstance(error, DiskFull)
                            name: EventName = "disk full" if is_full else "folder in use"
                            passed = "there is space" if is_full else "it is free"
                            again = f"{error} Retried until {passed}."
                            self._tell(AuthorityEvent(name=name, detail=again))
                    except (NotInRoster, CoordinatorWentBack) as error:
                        if reported != (why := why_behind(error, store)):
                            reported = why
                            self._tell(AuthorityEvent(name="revealer waits", detail=why))
                    self._backoff.pause(self._tries)
                    self._tries += 1
        except Stopped:
            pass
        except BaseException as error:
            # Raised in the thread that waits.
            self._error = None if self._stop.requested else error

    def _work(self, store: OpenedSums) -> None:
        """Open the sums of one key epoch, until the epoch or the run ends."""
        membership = self._enrolled(store)
        try:
            self._bind(store, membership)
            self._epoch, self._journal.run = membership.epoch, membership.run
            # Rounds of an earlier epoch are finally over once this one began.
            with changing(self._folder) as folder:
                folder.revealer.destroy_before(membership.epoch)
            half = ServerHalf(membership.plan, len(membership.catalogue))
            context = OpeningContext(
                membership=membership,
                link=self._link,
                model=SharedModel(membership, half, store),
                store=store,
                audit=AuditLog(self._state, self._clock),
                journal=self._journal,
            )
            ended = _Session(context, self._backoff, self._clock, self._folder).run()
        finally:
            membership.close()
            membership.secrets.destroy()
        if not isinstance(ended, EpochChanged):
            self._await_resumption(membership, store.state.version)

    def _enrolled(self, store: OpenedSums) -> Membership:
        """Enrol in the coordinator's epoch as soon as its secret key is in the folder.

        A restored folder has none until a new epoch was made and delivered.
        """
        attempt = 0
        while True:
            folder = self._folder
            try:
                return enrol(
                    self._link,
                    folder.revealer.load(),
                    authority_key=read_authority_key(folder.public_key_path),
                    catalogue_cache=store.catalogue_path,
                    expected=plan_from_json(folder.membership.plan_json),
                    # It has no users that could be exposed.
                    accept_exposure=True,
                    secret_of=folder.revealer.secret_of,
                )
            except (KeysError, NotInRoster) as error:
                if attempt == 0:
                    self._tell(AuthorityEvent(name="revealer waits", detail=str(error)))
            self._backoff.pause(attempt)
            attempt += 1

    def _bind(self, store: OpenedSums, membership: Membership) -> None:
        pin = RunPin(
            federation=membership.federation,
            run=membership.run,
            plan_json=plan_to_json(membership.plan).decode(),
            catalogue_fingerprint=membership.catalogue_fingerprint,
            users=users_digest(_no_users()),
        )
        if not store.is_bound or store.state.pin.run != pin.run:
            check_new_run(membership.plan)
        store.bind(pin, membership.epoch, new_run=self._new_run)

    def _await_resumption(self, membership: Membership, version: RoundId) -> None:
        """Wait until the run continues: an operator may resume it, or begin another one."""
        attempt = 0
        while True:
            self._backoff.pause(attempt)
            attempt += 1
            try:
                found = self._link.next_task(
                    membership.client_id, membership.run, version, wait_seconds=0.0
                )
            except Unreachable:
                continue
            except FedrecError:
                # Another run or epoch: enrolment handles it.
                return
            if not isinstance(found.task, Finished):
                return

    def _on_event(self, event: ClientEvent) -> None:
        name = _TOLD.get(event.name)
        if name is None:
            return
        if event.name == "joined":
            # On a full disk it rejoins at every try.
            if self._tries and event.detail == self._joined:
                return
            self._joined = event.detail
        seconds = f"{event.seconds:.2f} s" if event.seconds else ""
        self._tell(
            AuthorityEvent(
                name=name,
                run=event.run,
                epoch=self._epoch,
                round=event.round or 0,
                detail=event.detail or seconds,
                seconds=event.seconds,
            )
        )


class _CatchingUp(CatchingUp):
    """Apply published rounds, unless they differ from the opened ones."""

    _store: OpenedSums

    def _check_known(self, found: PublishedRound, manifest: bytes) -> None:
        opened = self._store.state.revealed_as(found.round)
        if opened is not None and (opened.kept or opened.manifest_digest) != manifest:
            raise RefusedError(
                f"Round {found.round} was published with other contributions than those that were "
                "opened here."
            )


class _Session(PullLoop):
    """The key authority's work: follow published rounds, and open sums.

    It ignores the coordinator's other tasks: it trains nothing and sends no model.
    """

    def __init__(
        self,
        context: OpeningContext,
        backoff: Backoff,
        clock: Clock,
        folder: AuthorityFolder,
    ) -> None:
        super().__init__(
            context,
            backoff,
            clock,
            catching_up=_CatchingUp(context),
            rollbacks=RollbackDetection(context),
        )
        self._revealing = SumOpening(context, folder)
        self._opened = context.store
        self._folder = folder
        self._goes_on = False

    def _answer(self, work: Work) -> bool:
        if not isinstance(work, Reveal):
            return False
        if not self._goes_on:
            # While a round is open, the coordinator can move neither back nor forward.
            continue_chain(self._link, self._membership, self._opened, self._folder)
            self._goes_on = True
        self._revealing.reveal(work)
        return True


def _no_users() -> UserSplit:
    """Return no users, for a party without data."""
    none = np.zeros(0, dtype=np.int64)
    return UserSplit(
        user_ids=(),
        train_indptr=np.zeros(1, dtype=np.int64),
        train_items=none,
        validation_items=none,
        test_items=none,
    )
