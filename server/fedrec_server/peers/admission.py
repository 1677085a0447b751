"""Cheap checks of peers' messages before resources are spent, and applications for membership."""

from __future__ import annotations

import hashlib

from fedrec.errors import (
    BadSignature,
    CatalogueMismatch,
    CoordinatorWentBack,
    FedrecError,
    InvitationUsed,
    MalformedUpdate,
    PlanMismatch,
    ProtocolError,
    RefusedError,
    RoundClosed,
    TooLarge,
    VersionMismatch,
)
from fedrec.identity.application import SignedApplication
from fedrec.identity.public import PublicIdentity, verify
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.wire.fields import DIGEST_BYTES
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    Report,
    RevealStatement,
    StepMessage,
    UploadHeader,
)
from fedrec_server.run.live_run import LiveRun
from fedrec_server.run.work import Work
from fedrec_server.store.store import Applicant, Store


class Admission:
    """Compare headers and statements with the federation's constants and signatures.

    Args:
        maximum_upload_bytes: the operator's limit.
    """

    def __init__(self, run: LiveRun, maximum_upload_bytes: int) -> None:
        self._run = run
        self._maximum_upload_bytes = maximum_upload_bytes

    def check_run(self, run: str) -> None:
        """Refuse calls for another run."""
        if run != self._run.name:
            raise ProtocolError(
                "The message is for a different run than the one on this coordinator.",
                remedy="Fetch the federation's description again.",
            )

    def check_member(self, client_id: ClientId) -> None:
        """Refuse callers that are neither members nor the revealer."""
        self._run.federation.keys.roster.holder(client_id)

    def check_header(self, header: UploadHeader) -> None:
        """Check an upload's header, beginning with the cheapest tests.

        Raises:
            FedrecError: a check failed. Its kind depends on the first one that did.
        """
        wanted = self._run.federation.identity
        if header.protocol_version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
            raise VersionMismatch(
                f"The update uses protocol {header.protocol_version}, expected {PROTOCOL_VERSION}."
            )
        self._check_origin(header.federation, header.run, header.epoch)
        if header.catalogue_fingerprint != wanted.catalogue_fingerprint:
            raise CatalogueMismatch(
                "The update was made with a different catalogue.",
                remedy="Fetch the federation's catalogue.",
            )
        if header.plan_fingerprint != wanted.plan_fingerprint:
            raise PlanMismatch("The update was made with other settings.")
        self.check_blob(header.length)
        length = self._run.protection_of(header.kind).chosen.message_bytes
        if header.length != length:
            raise MalformedUpdate(
                f"The update has {header.length} bytes over {header.n_rows} item rows. Every "
                f"update of a round of kind {header.kind} has {length} bytes over "
                f"{self._run.state.rows_of(header.kind).n_rows} rows."
            )
        if bool(header.nonce) != bool(self._run.federation.protection.chosen.n_tags):
            raise ProtocolError("Updates have a nonce if, and only if, they carry tags.")
        if len(header.digest) != DIGEST_BYTES:
            raise ProtocolError(f"A digest must have {DIGEST_BYTES} bytes.")
        self._check_signature(header.client_id, header.statement(), header.signature)

    def check_statement(self, statement: RevealStatement, manifest_digest: bytes) -> None:
        """Check the key authority's statement about the round in state revealing."""
        self._check_origin(statement.federation, statement.run, statement.epoch)
        if statement.manifest_digest != manifest_digest:
            raise ProtocolError("The statement is about another list of contributions.")
        if not statement.refused:
            self._check_metrics(statement.metrics)
        revealer = self._run.federation.keys.roster.revealer
        if revealer is None or statement.client_id != revealer.client_id:
            raise RefusedError(f"The key authority alone opens round {statement.round}.")
        verify(revealer.signing_key, statement.statement(), statement.signature)

    def check_published_statement(
        self, statement: RevealStatement, former: tuple[PublicIdentity, ...] = ()
    ) -> bool:
        """Return whether the key authority published a round of this run, in any key epoch.

        Args:
            former: its earlier revealers.

        Returns:
            False if the signer is unknown.

        Raises:
            FedrecError: the statement is unrelated, a refusal, or has a different signer.
        """
        if statement.federation != self._run.federation.identity.federation:
            raise ProtocolError("The message is for a different federation.")
        self.check_run(statement.run)
        present = self._run.federation.keys.roster.revealer
        if present is None or statement.refused:
            raise RefusedError("This is not the key authority's statement on a published round.")
        known = {revealer.client_id: revealer for revealer in (*former, present)}
        revealer = known.get(statement.client_id)
        if revealer is None:
            return False
        verify(revealer.signing_key, statement.statement(), statement.signature)
        return True

    def check_own(self, client_id: ClientId, header: UploadHeader) -> None:
        """Check that a member signed an update of this run, in any key epoch."""
        if (
            header.client_id != client_id
            or header.federation != self._run.federation.identity.federation
        ):
            raise RefusedError("The update does not belong to this client.")
        self.check_run(header.run)
        self._check_signature(client_id, header.statement(), header.signature)

    def check_report(self, report: Report, *, measured: bool) -> None:
        """Check the sender of a report on the model after a round.

        Args:
            measured: whether it includes the round's metrics.
        """
        self._check_origin(report.federation, report.run, report.epoch)
        if measured:
            self._check_metrics(report.metrics)
        elif report.metrics:
            raise ProtocolError("A report on a copy of the model must not have metrics.")
        self._check_signature(report.client_id, report.statement(), report.signature)

    def _check_metrics(self, metrics: bytes) -> None:
        wanted = self._run.federation.metrics_bytes
        if len(metrics) != wanted:
            raise ProtocolError(f"The metrics have {len(metrics)} bytes, expected {wanted}.")

    def check_step_message(self, message: StepMessage) -> None:
        """Check the sender and the run of a step's message."""
        self._check_origin(message.federation, message.run, message.epoch)
        self._check_signature(message.client_id, message.statement(), message.signature)

    def check_blob(self, length: int) -> None:
        """Refuse a sealed aggregate or snapshot above the operator's limit."""
        if length > self._maximum_upload_bytes:
            raise TooLarge(
                f"{length} bytes were announced, but at most {self._maximum_upload_bytes} are "
                "allowed."
            )

    def _check_origin(self, federation: str, run: str, epoch: int) -> None:
        wanted = self._run.federation.identity
        if federation != wanted.federation:
            raise ProtocolError("The message is for a different federation.")
        self.check_run(run)
        if epoch < wanted.epoch:
            # Not the sender's fault: it did not know about the change yet.
            raise RoundClosed(f"Key epoch {epoch} is over. The current one is {wanted.epoch}.")
        if epoch != wanted.epoch:
            # The folder was restored from an older copy, so the sender waits for the newest one.
            raise CoordinatorWentBack(
                f"The message is for key epoch {epoch}, but the coordinator is in {wanted.epoch}."
            )

    def _check_signature(self, client_id: ClientId, statement: bytes, signature: bytes) -> None:
        member = self._run.federation.keys.roster.member(client_id)
        verify(member.signing_key, statement, signature)


class Applications:
    """The applications of one run, which survive a restart.

    Args:
        store: stores them. It is used in `work`'s thread only, except for the first reading.
    """

    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work
        self._known = {found.invitation: found for found in store.applicants()}
        self._labels: dict[ClientId, str] = {}

    async def apply(self, raw: bytes, invitation: bytes, *, invited: bool = True) -> ClientId:
        """Store an application durably and return its applicant.

        A stored application stays, unless its applicant changed its consent as a guest.

        Args:
            raw: a signed application.
            invitation: the public key of the certificate with which it came.
            invited: whether that is an invitation rather than a member's own certificate.

        Raises:
            InvitationUsed: another party applied with this invitation.
            BadSignature: a key was replaced, or another invitation signed it.
            ProtocolError: the bytes are not an application.
            RefusedError: a member applies for anything but leaving its cell's core.
        """
        application = _read(raw)
        if application.invitation != invitation:
            raise BadSignature(
                "The application was not signed with the invitation that it came with."
            )
        client_id = application.identity.client_id
        if not invited and not (application.is_leave and application.consent):
            raise RefusedError("A member's own application may only ask to become a guest.")
        key = application.invitation_sha256
        known = self._known.get(key)
        if known is not None:
            before = _read(known.application)
            if before.identity != application.identity:
                raise InvitationUsed(f"The invitation was used by {known.client_id[:16]}.")
            if before.consent == application.consent:
                return client_id
        # Stored before anything is awaited, so that only one of several concurrent applications
        # wins.
        made = Applicant(invitation=key, client_id=client_id, application=raw)
        self._known[key] = made
        try:
            await self._work.in_thread(self._store.keep_applicant, made)
        except BaseException:
            del self._known[key]
            if known is not None:
                self._known[key] = known
            raise
        return client_id

    def labels(self) -> list[str]:
        """Return the labels of all applicants, or the beginning of their ids."""
        for one in self._known.values():
            if one.client_id not in self._labels:
                label = _read(one.application).identity.label
                self._labels[one.client_id] = label or one.client_id[:16]
        return sorted(self._labels[one.client_id] for one in self._known.values())

    def waiting(self, roster: Roster) -> list[bytes]:
        """Return the applications that the key authority must decide on.

        These are applications of new parties, and of members that want to become guests.
        """
        found = sorted(self._known.values(), key=lambda applicant: applicant.client_id)
        return [one.application for one in found if _is_open(one, roster)]


def _is_open(applicant: Applicant, roster: Roster) -> bool:
    if not roster.contains(applicant.client_id):
        return True
    own = hashlib.sha256(roster.member(applicant.client_id).tls_key).digest()
    standing = roster.partition.standing(applicant.client_id)
    is_guest = standing is not None and bool(standing.consent)
    return applicant.invitation == own and not is_guest


def _read(raw: bytes) -> SignedApplication:
    try:
        return SignedApplication.from_json(raw)
    except BadSignature:
        raise
    except FedrecError as error:
        raise ProtocolError(f"The application is invalid: {error.message}") from None
