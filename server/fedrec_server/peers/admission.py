"""What is checked before anything is spent on a peer's word, and who asks to become a member."""

from __future__ import annotations

import hashlib

from fedrec.errors import (
    BadSignature,
    CatalogueMismatch,
    FedrecError,
    InvitationUsed,
    KeysError,
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

DIGEST_BYTES = 32


class Admission:
    """Compares headers and statements with the federation's constants and signatures.

    Args:
        maximum_upload_bytes: the operator's limit.
    """

    def __init__(self, run: LiveRun, maximum_upload_bytes: int) -> None:
        self._run = run
        self._maximum_upload_bytes = maximum_upload_bytes

    def check_run(self, run: str) -> None:
        """Refuse calls about another run."""
        if run != self._run.name:
            raise ProtocolError(
                "The message is about another run than this coordinator's.",
                remedy="Fetch the federation's description again.",
            )

    def check_member(self, client_id: ClientId) -> None:
        """Refuse callers whom the key authority did not list, be it as the revealer."""
        self._run.federation.keys.roster.holder(client_id)

    def check_header(self, header: UploadHeader) -> None:
        """Check an upload's announcement, cheap questions first.

        Raises:
            FedrecError: of the kind that fits the first thing that is wrong.
        """
        wanted = self._run.federation.identity
        if header.protocol_version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
            raise VersionMismatch(
                f"The update speaks protocol {header.protocol_version}, "
                f"this coordinator {PROTOCOL_VERSION}."
            )
        self._check_origin(header.federation, header.run, header.epoch)
        if header.catalogue_fingerprint != wanted.catalogue_fingerprint:
            raise CatalogueMismatch(
                "The update counts items by another catalogue.",
                remedy="Fetch the federation's catalogue.",
            )
        if header.plan_fingerprint != wanted.plan_fingerprint:
            raise PlanMismatch("The update was made under other settings.")
        self.check_blob(header.length)
        length = self._run.protection_of(header.kind).chosen.message_bytes
        if header.length != length:
            raise MalformedUpdate(
                f"An update of {header.length} bytes over {header.n_rows} item rows; every one of "
                f"a round of kind {header.kind} has {length} bytes, over "
                f"{self._run.state.rows_of(header.kind).n_rows}."
            )
        if bool(header.nonce) != bool(self._run.federation.protection.chosen.n_tags):
            raise ProtocolError("A nonce belongs to updates that carry tags, and to no others.")
        if len(header.digest) != DIGEST_BYTES:
            raise ProtocolError(f"A digest has {DIGEST_BYTES} bytes.")
        self._check_signature(header.client_id, header.statement(), header.signature)

    def check_statement(self, statement: RevealStatement, manifest_digest: bytes) -> None:
        """Check the key authority's statement about the round that is being revealed."""
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
        """Tell whether the key authority published a round of this run, in whatever key epoch.

        Args:
            former: its revealers before the present one.

        Returns:
            False where the signer is not known here.

        Raises:
            FedrecError: it is about something else, a refusal, or signed by somebody else.
        """
        if statement.federation != self._run.federation.identity.federation:
            raise ProtocolError("The message is about another federation.")
        self.check_run(statement.run)
        present = self._run.federation.keys.roster.revealer
        if present is None or statement.refused:
            raise RefusedError("This is no word of the key authority on a published round.")
        known = {revealer.client_id: revealer for revealer in (*former, present)}
        revealer = known.get(statement.client_id)
        if revealer is None:
            return False
        verify(revealer.signing_key, statement.statement(), statement.signature)
        return True

    def check_own(self, client_id: ClientId, header: UploadHeader) -> None:
        """Check that a member signed an update of this run, in whatever key epoch."""
        if (
            header.client_id != client_id
            or header.federation != self._run.federation.identity.federation
        ):
            raise RefusedError("The update is not this client's.")
        self.check_run(header.run)
        self._check_signature(client_id, header.statement(), header.signature)

    def check_report(self, report: Report, *, measured: bool) -> None:
        """Check who tells which model follows from a round.

        Args:
            measured: whether it tells what the round measured, too.
        """
        self._check_origin(report.federation, report.run, report.epoch)
        if measured:
            self._check_metrics(report.metrics)
        elif report.metrics:
            raise ProtocolError("No metrics belong to a copy of the model.")
        self._check_signature(report.client_id, report.statement(), report.signature)

    def _check_metrics(self, metrics: bytes) -> None:
        wanted = self._run.federation.metrics_bytes
        if len(metrics) != wanted:
            raise ProtocolError(f"The metrics have {len(metrics)} bytes, expected {wanted}.")

    def check_step_message(self, message: StepMessage) -> None:
        """Check who sends the message of a step, and that it is about this run."""
        self._check_origin(message.federation, message.run, message.epoch)
        self._check_signature(message.client_id, message.statement(), message.signature)

    def check_blob(self, length: int) -> None:
        """Refuse a sealed aggregate or snapshot above the operator's limit."""
        if length > self._maximum_upload_bytes:
            raise TooLarge(
                f"{length} bytes are announced, {self._maximum_upload_bytes} are allowed."
            )

    def _check_origin(self, federation: str, run: str, epoch: int) -> None:
        wanted = self._run.federation.identity
        if federation != wanted.federation:
            raise ProtocolError("The message is about another federation.")
        self.check_run(run)
        if epoch < wanted.epoch:
            # No blame: it was made before its author heard of the change.
            raise RoundClosed(f"Key epoch {epoch} is over; the present one is {wanted.epoch}.")
        if epoch != wanted.epoch:
            raise KeysError(f"The message is of key epoch {epoch}, the present is {wanted.epoch}.")

    def _check_signature(self, client_id: ClientId, statement: bytes, signature: bytes) -> None:
        member = self._run.federation.keys.roster.member(client_id)
        verify(member.signing_key, statement, signature)


class Applications:
    """The applications of one run; they survive a restart.

    Args:
        store: keeps them; used in `work`'s thread only, but for the first reading.
    """

    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work
        self._known = {found.invitation: found for found in store.applicants()}
        self._labels: dict[ClientId, str] = {}

    async def apply(self, raw: bytes, invitation: bytes, *, invited: bool = True) -> ClientId:
        """Keep an application, durably; return whose it is.

        One that is kept already stays, unless its applicant changed its word as a guest.

        Args:
            raw: a signed application.
            invitation: the public key of the certificate with which it came.
            invited: whether that is an invitation; else it is a member's own.

        Raises:
            InvitationUsed: somebody else applied with this invitation.
            BadSignature: a key was exchanged, or another invitation signed it.
            ProtocolError: it is no application.
            RefusedError: a member hands in another one than that it leaves its cell's core.
        """
        application = _read(raw)
        if application.invitation != invitation:
            raise BadSignature("The application came with another invitation than it is signed by.")
        client_id = application.identity.client_id
        if not invited and not (application.is_leave and application.consent):
            raise RefusedError("A member applies for itself alone, and to be a guest.")
        key = application.invitation_sha256
        known = self._known.get(key)
        if known is not None:
            before = _read(known.application)
            if before.identity != application.identity:
                raise InvitationUsed(f"The invitation is {known.client_id[:16]}'s already.")
            if before.consent == application.consent:
                return client_id
        # Taken before anything is awaited: of many at once one gets it.
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
        """Return what all who ever applied call themselves; an id's beginning for an empty one."""
        for one in self._known.values():
            if one.client_id not in self._labels:
                label = _read(one.application).identity.label
                self._labels[one.client_id] = label or one.client_id[:16]
        return sorted(self._labels[one.client_id] for one in self._known.values())

    def waiting(self, roster: Roster) -> list[bytes]:
        """Return what the key authority has to look at.

        Applications of those who are no members, and of members that are to be guests and are not.
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
        raise ProtocolError(f"The application cannot be used: {error.message}") from None
