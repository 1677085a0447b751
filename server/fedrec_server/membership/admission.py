"""What is checked before memory, disk or the key authority's time is spent on a peer's word."""

from __future__ import annotations

from fedrec.errors import (
    CatalogueMismatch,
    KeysError,
    MalformedUpdate,
    PlanMismatch,
    ProtocolError,
    RefusedError,
    RoundClosed,
    TooLarge,
    VersionMismatch,
)
from fedrec.identity.public import PublicIdentity, verify
from fedrec.ids import ClientId
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    Report,
    RevealStatement,
    StepMessage,
    UploadHeader,
)
from fedrec_server.run.live_run import LiveRun

__all__ = ["Admission"]

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
