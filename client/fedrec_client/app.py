"""The client process: it builds sessions from settings and runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedrec.clock import Clock, SystemClock
from fedrec.data import UserSplit
from fedrec.data.source import check_one_party, read_source, read_users
from fedrec.durable import DiskFull, require_writable, write_whole
from fedrec.environment import Provenance, describe_environment, provenance_of
from fedrec.errors import (
    CoordinatorWentBack,
    FedrecError,
    KeysError,
    NotInRoster,
    RosterBreaksCells,
)
from fedrec.evaluation.metrics import Protocol, Rates
from fedrec.follower.database import STATE_FORMAT
from fedrec.follower.enrolment import enrol
from fedrec.follower.events import OnEvent, log_event
from fedrec.follower.membership import Membership
from fedrec.follower.patient_link import Backoff, Meter, StopSwitch, patient_link
from fedrec.follower.pull_loop import EpochChanged, why_behind
from fedrec.follower.round_journal import AuditLog, RoundJournal
from fedrec.follower.stored_state import RunPin, users_digest
from fedrec.formats import ENVIRONMENT_NAME
from fedrec.identity.certificates import certificate_sha256
from fedrec.identity.identity import KEY_FILE, Identity, known_identity, new_or_known_identity
from fedrec.identity.public import read_authority_key, read_issuer
from fedrec.ids import RoundId
from fedrec.plan.agreement import (
    check_continued,
    check_new_run,
    plan_from_json,
    plan_to_json,
)
from fedrec.plan.exposure import check_member_exposure, check_own_floor, check_users
from fedrec.plan.schema import Plan
from fedrec.recommender.tail import check_tail_users
from fedrec.settings.schema import Settings
from fedrec.wire.link import Link
from fedrec.wire.messages import Finished
from fedrec_client.connecting import certificate_path, invited_link, open_link, saying_goodbye
from fedrec_client.joining import SHOWN_CHARS, RosterChain, join, waiting_detail
from fedrec_client.own_recommender import own_recommender
from fedrec_client.round.local_model import ClientContext, LocalModel
from fedrec_client.session import Session
from fedrec_client.state.private_store import PrivateStore

if TYPE_CHECKING:
    from fedrec.training.learner import Learner


_PREPARING = "compiles the trainer, about ten seconds the first time on a machine, then a moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcome:
    """The end of a client's work in a run.

    Attributes:
        version: the last published round that the model contains.
        best_round: the version with the best validation rates, or None.
        validation: its rates over all clients' users under `protocol`. None if nothing was
            measured.
        test: its rates on the test items, which had no influence on the choice.
        at: the K of the rates.
    """

    reason: str
    failed: bool
    run: str
    version: RoundId
    best_round: RoundId | None
    validation: Rates | None
    test: Rates | None
    protocol: Protocol
    at: int
    bytes_sent: int
    bytes_received: int


def _kept(store: PrivateStore) -> int:
    """Return the last round with stored results, or 0."""
    return store.state.version if store.is_bound else 0


class _Attempts:
    """Attempts to work since the last one that went well, and the trouble that was reported.

    Attributes:
        failed: their number, which lengthens the pause.
    """

    def __init__(self) -> None:
        self.failed = 0
        self._reported: dict[str, int | str] = {}

    def was_reported(self, event: str, cause: int | str) -> bool:
        """Return whether the last event of this kind had this cause."""
        return self._reported.get(event) == cause

    def is_news(self, event: str, cause: int | str) -> bool:
        """Return whether to report trouble, and remember it. News makes pauses short again."""
        if self.was_reported(event, cause):
            return False
        self._reported[event], self.failed = cause, 0
        return True


class ClientApp:
    """Runs a client until the run is over, across key epochs and restarts of the coordinator.

    Args:
        settings: a whole settings file.
        link: the coordinator. The default is gRPC to `client.coordinator`.
        on_event: receives all events.
        backoff: how long to wait for a silent coordinator, and what stops the client.
        clock: the time.
        accept_exposure: accept what a plan without encryption exposes.
        accept_other_arithmetic: continue a run that was trained under other arithmetic.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        link: Link | None = None,
        on_event: OnEvent = log_event,
        backoff: Backoff | None = None,
        clock: Clock | None = None,
        accept_exposure: bool = False,
        accept_other_arithmetic: bool = False,
    ) -> None:
        self._accept_exposure = accept_exposure
        self._accept_other_arithmetic = accept_other_arithmetic
        self._settings = settings
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff(StopSwitch())
        self._stop = self._backoff.stop
        self._meter = Meter()
        self._folder = Path(settings.client.state)
        self._on_event = on_event
        self._bare_link = link
        self._may_replace_run = False

    @property
    def wants_new_run(self) -> bool:
        """Whether `new_run` was given and is not used up: it is valid for a single run."""
        return self._may_replace_run

    def _continues(self, store: PrivateStore) -> bool:
        """Return whether the folder has a run that must continue."""
        return store.is_bound and not self._may_replace_run

    def run(self, *, new_run: bool = False) -> ClientOutcome:
        """Enrol, work until the run is over, and return its outcome.

        Args:
            new_run: replace the state folder's run by the coordinator's run. This consent is valid
                for a single run: it is used up once this client participates.

        Raises:
            Stopped: a stop was requested. Everything is saved.
            FedrecError: the client cannot, or must not, continue.
        """
        self._may_replace_run = new_run
        check_one_party(self._settings.data)
        authority_key = read_authority_key(Path(self._settings.client.authority_key))
        # Before the folder is touched: a mistyped path must not create a client.
        identity = self._identity()
        require_writable(self._folder, "client.state")
        try:
            # A second process must not open the folder, nor send a goodbye for the first.
            with (
                PrivateStore(self._folder) as store,
                saying_goodbye(self._reach, identity.client_id),
            ):
                return self._run(store, identity, authority_key)
        finally:
            if self._bare_link is not None:
                self._bare_link.close()

    def _run(self, store: PrivateStore, identity: Identity, authority_key: bytes) -> ClientOutcome:
        if self._continues(store):
            # A user that moved the folder learns it at once, not when the coordinator answers.
            plan = plan_from_json(store.state.pin.plan_json.encode())
            check_continued(plan)
            self._go_on(store, self._provenance(plan))
        else:
            # Nor does it apply for users that it does not find.
            read_source(self._settings.data, reader="a client")
        journal = RoundJournal(self._folder, self._clock, self._meter, self._on_event)
        if self._continues(store):
            journal.run = store.state.pin.run
        journal.tell("starting", detail=self._paths_line(identity))
        self._apply(identity, journal)
        link = self._patient(self._reach(), journal)
        chain = RosterChain(store, AuditLog(self._folder, self._clock))
        attempts = _Attempts()
        while True:
            try:
                journal.write()
                membership = self._enrolled(store, identity, authority_key, link)
                if membership is None and not attempts.failed:
                    journal.tell("waiting_to_join", detail=waiting_detail(identity))
                if membership and self._is_admitted(chain, membership, journal):
                    # Another attempt on a full disk does not repeat the steps before the round.
                    reports = not attempts.was_reported("disk_full", _kept(store))
                    ended = self._work(store, membership, link, journal, reports=reports)
                    if ended is not None:
                        self._tell_tail(store, journal)
                        return self._outcome(store, ended)
                    attempts.failed = 0
                    continue
            except DiskFull as error:
                # Committed data is on disk, and the client continues from there.
                if attempts.is_news("disk_full", _kept(store)):
                    again = "The client retries until there is space."
                    journal.tell("disk_full", detail=f"{error} {again}")
            except (NotInRoster, CoordinatorWentBack) as error:
                why = why_behind(error, store)
                if attempts.is_news("coordinator_went_back", why):
                    journal.tell("coordinator_went_back", detail=why)
            self._backoff.pause(attempts.failed)
            attempts.failed += 1

    def _reach(self) -> Link:
        """Return the bare link to the coordinator, the same one while the client runs.

        Raises:
            KeysError: this client has no valid certificate.
            CertificateExpired: this machine's clock is outside the certificate's dates.
        """
        if self._bare_link is None:
            self._bare_link = open_link(self._settings)
        return self._bare_link

    def _is_admitted(
        self, chain: RosterChain, membership: Membership, journal: RoundJournal
    ) -> bool:
        """Return whether the roster follows from the previous one. If not, discard its keys."""
        try:
            chain.admit(membership.roster, membership.run)
        except (RosterBreaksCells, DiskFull) as error:
            membership.close()
            membership.secrets.destroy()
            if isinstance(error, DiskFull):
                raise
            journal.tell("roster_refused", detail=error.message)
            return False
        return True

    def _identity(self) -> Identity:
        """Return this client's keys. An invited client creates them at the first start."""
        client = self._settings.client
        invited = client.invitation is not None and Path(client.invitation).exists()
        if invited and not (self._folder / KEY_FILE).exists():
            new_or_known_identity(self._folder, client.label)
        return known_identity(self._folder, client.label)

    def _apply(self, identity: Identity, journal: RoundJournal) -> None:
        """Apply with the invitation, if there is one and no certificate yet."""
        if self._settings.client.invitation is None or certificate_path(self._settings).exists():
            return
        bare = self._bare_link or invited_link(self._settings)
        link = self._patient(bare, journal)
        try:
            join(link, identity, self._settings, journal, self._backoff)
        finally:
            if bare is not self._bare_link:
                link.close()

    def _paths_line(self, identity: Identity) -> str:
        """Return a line with the folder, keys and data of this client."""
        path = self._settings.data.path
        data = "none" if path is None else str(Path(path).absolute())
        state = self._folder.absolute()
        return f"client id {identity.client_id[:SHOWN_CHARS]}, state {state}, data {data}"

    def _report_cell(self, membership: Membership, journal: RoundJournal) -> None:
        """Report that this client is in no sum yet, or awaited despite its settings."""
        if membership.identity.public in membership.roster.unplaced:
            detail = f"a member, but in no sum yet: {membership.roster.why_unplaced()}"
            journal.tell("unplaced", detail=detail)
        cell = membership.roster.partition.cell_of(membership.identity.client_id)
        waited_for = cell is not None and membership.identity.client_id in cell.core
        if waited_for and self._settings.client.when_away == "go_on":
            journal.tell(
                "waited_for",
                detail="client.when_away takes effect when a client applies. Run `fedrec client "
                "leave` to let rounds continue without this one",
            )

    def _patient(self, link: Link, journal: RoundJournal) -> Link:
        def trouble(error: FedrecError) -> None:
            journal.tell("unreachable", detail=f"{error} The client retries until it answers.")

        def answer(failed: int) -> None:
            journal.tell("reached", detail=f"after {failed} failed calls")

        return patient_link(
            link,
            self._meter,
            self._backoff,
            trouble,
            on_answer=answer,
        )

    def _enrolled(
        self,
        store: PrivateStore,
        identity: Identity,
        authority_key: bytes,
        link: Link,
    ) -> Membership | None:
        """Enrol in the current key epoch. Return None if its roster does not list this client yet.

        Raises:
            NotInRoster: this client was a member before. The owner decides whether to apply again.
        """
        local = self._settings.data.catalogue
        try:
            found = enrol(
                link,
                identity,
                authority_key=authority_key,
                catalogue_cache=store.catalogue_path,
                expected=self._settings,
                catalogue_file=None if local is None else Path(local),
                accept_exposure=self._accept_exposure,
            )
        except NotInRoster:
            if self._continues(store):
                raise
            return None
        issuer = read_issuer(Path(self._settings.client.authority_key))
        if found.roster.ca_sha256 != certificate_sha256(issuer):
            raise KeysError(
                "client.authority_key: certificates of this federation come from a different "
                "issuer than this file names.",
                remedy="Ask the data owners for authority.pub.json again.",
            )
        return found

    def _work(
        self,
        store: PrivateStore,
        membership: Membership,
        link: Link,
        journal: RoundJournal,
        *,
        reports: bool,
    ) -> Finished | None:
        """Work through one key epoch. Return None when another one began.

        Args:
            reports: whether to report the steps before the first round.
        """
        learner = None
        journal.run = membership.run
        try:
            if reports:
                self._report_cell(membership, journal)
            users, _ = read_users(
                self._settings.data,
                membership.catalogue,
                reader="a client",
                tell=lambda note: journal.tell("data", detail=note) if reports else None,
                folder=self._folder,
            )
            self._check_exposure(membership, len(users))
            self._bind(store, membership, users)
            self._stop.check()
            if reports:
                journal.tell("preparing", detail=_PREPARING)
            began = self._clock.now()
            learner = self._learner(membership, len(users), store.state.provenance)
            if reports:
                journal.tell("prepared", seconds=self._clock.now() - began)
            context = ClientContext(
                membership=membership,
                link=link,
                model=LocalModel(
                    membership,
                    learner,
                    users,
                    store,
                    floor=self._settings.client.minimum_own_item_users,
                ),
                store=store,
                audit=AuditLog(self._folder, self._clock),
                journal=journal,
            )
            session = Session(context, self._backoff, self._clock)
            ended = session.run()
        finally:
            if learner is not None:
                learner.local.close()
            membership.close()
            membership.secrets.destroy()
        return None if isinstance(ended, EpochChanged) else ended

    def _check_exposure(self, membership: Membership, n_users: int) -> None:
        """Refuse to contribute data that others could read, unless that was accepted here."""
        client, roster = self._settings.client, membership.roster
        check_users(membership.plan, n_users)
        check_own_floor(client.minimum_own_item_users, n_users)
        if client.tail:
            check_tail_users(n_users)
        check_member_exposure(
            membership.plan,
            n_cells=len(roster.partition.in_use),
            floor=client.minimum_own_item_users,
            accepted=self._accept_exposure or client.accept_member_exposure,
        )

    def _learner(
        self, membership: Membership, n_users: int, provenance: Provenance | None
    ) -> Learner:
        # torch takes seconds to import, and `fedrec client --help` must not wait for it.
        from fedrec.cluster.engine import engine_of
        from fedrec.training.learner import Learner

        client = self._settings.client
        learner = Learner.of(
            client,
            membership.plan,
            len(membership.catalogue),
            scratch=self._folder,
            workers=engine_of(client, folder=self._folder),
        )
        # Before training: its results must have room.
        learner.local.room.make_ready(n_users, learner.server.algorithm.derived.private_widths)
        self._record_environment(provenance)
        # Before the first task: compiling must not use up a round's deadline or delay Ctrl-C.
        self._stop.aside(learner.warm_up)
        return learner

    def _provenance(self, plan: Plan) -> Provenance:
        return provenance_of(plan, self._settings.client.device)

    def _go_on(self, store: PrivateStore, present: Provenance) -> None:
        accepted = self._accept_other_arithmetic
        store.go_on(present, accepted=accepted, now=self._clock.now())

    def _record_environment(self, provenance: Provenance | None) -> None:
        """Record in the state folder the environment in which this run's rounds are trained.

        The last start counts.
        """
        found = describe_environment(provenance, format_number=STATE_FORMAT)
        write_whole(self._folder / ENVIRONMENT_NAME, found.to_json().encode(), private=True)

    def _bind(self, store: PrivateStore, membership: Membership, users: UserSplit) -> None:
        pin = RunPin(
            federation=membership.federation,
            run=membership.run,
            plan_json=plan_to_json(membership.plan).decode(),
            catalogue_fingerprint=membership.catalogue_fingerprint,
            users=users_digest(users),
        )
        present = self._provenance(membership.plan)
        if store.is_bound and store.state.pin.run == pin.run:
            self._go_on(store, present)
        else:
            check_new_run(membership.plan)
        store.bind(pin, membership.epoch, new_run=self._may_replace_run, provenance=present)
        # The consent is used up: otherwise, a client that is removed later would apply again.
        self._may_replace_run = False

    def _tell_tail(self, store: PrivateStore, journal: RoundJournal) -> None:
        """Report the value of this client's own scores on its validation items."""
        if self._settings.client.tail and store.state.shared is not None:
            own = own_recommender(self._settings)
            journal.tell("tail_at_home", own.round, detail=str(own.tail))

    def _outcome(self, store: PrivateStore, ended: Finished) -> ClientOutcome:
        state, measured = store.state, plan_from_json(store.state.pin.plan_json.encode()).evaluation
        return ClientOutcome(
            reason=ended.reason,
            failed=ended.failed,
            run=state.pin.run,
            version=state.version,
            best_round=None if state.best is None else state.best.round,
            validation=None if state.best is None else state.best.validation,
            test=None if state.best is None else state.best.test,
            protocol=measured.protocol,
            at=measured.at,
            bytes_sent=self._meter.sent,
            bytes_received=self._meter.received,
        )
