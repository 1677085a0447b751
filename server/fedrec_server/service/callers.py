"""Who calls, what that one may ask for, and the log of what was refused.

The handshake let in every holder of a certificate of the key authority's. Who that is now follows
from the roster in force, looked up at every call, so that a removed member is refused at its next
one, and never from what a message says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog

from fedrec.errors import (
    FedrecError,
    InternalError,
    KeysError,
    NotInRoster,
    RefusedError,
    WrongIdentity,
)
from fedrec.identity.certificates import is_invitation, key_of, name_of, split_certificates
from fedrec.identity.document import read_public
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.wire.grpc_calls import new_incident

ADMIN = "/fedrec.wire.v1.Admin/"
APPLY = "/fedrec.wire.v1.Coordinator/Apply"
REFLECTION = "/grpc.reflection."
SUMS = frozenset(
    f"/fedrec.wire.v1.Coordinator/{name}" for name in ("FetchContribution", "FetchSum")
)
"""The revealer fetches these, who opens sums, and nobody else."""
MAX_OPERATORS_BYTES = 1 << 20

Role = Literal["member", "revealer", "operator", "applicant"]
Message = Any
Context = Any
"""Generated messages and gRPC's objects are untyped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody with a certificate of the federation.

    Attributes:
        client_id: of a member or the revealer; empty for others.
    """

    role: Role
    client_id: ClientId

    def check_named(self, message: Message) -> None:
        """Refuse a message that is said to be somebody else's.

        Raises:
            WrongIdentity: its client id, or its header's or statement's, is not the caller's.
        """
        fields = message.DESCRIPTOR.fields_by_name
        if "part" in message.DESCRIPTOR.oneofs_by_name:
            part = message.WhichOneof("part")
            if part in ("header", "statement", "report"):
                self.check_named(getattr(message, part))
        elif "client_id" in fields and message.client_id != self.client_id:
            raise WrongIdentity(
                f"A message of {message.client_id[:16]!r} came from {self.client_id[:16]}."
            )


class Callers:
    """Looks up who calls.

    Args:
        roster: returns the roster in force.
        operators: the operators' certificates, one after the other; read at every call of theirs.

    Raises:
        KeysError: the operators' file cannot be used.
    """

    def __init__(self, roster: Callable[[], Roster], operators: Path) -> None:
        self._roster = roster
        self._operators = operators
        self._known: tuple[Roster, dict[bytes, ClientId]] | None = None
        self._operators_keys()

    @property
    def epoch(self) -> int:
        """Return the key epoch of the roster in force."""
        return self._roster().epoch

    def of(self, context: Context) -> Caller:
        """Return who makes a call.

        Raises:
            NotInRoster: neither the roster nor the operators' list has the certificate's key.
        """
        certificate = certificate_of(context)
        key, roster = key_of(certificate), self._roster()
        client_id = self._members(roster).get(key)
        if client_id is not None:
            revealer = roster.revealer
            alone = revealer is not None and client_id == revealer.client_id
            return Caller(role="revealer" if alone else "member", client_id=client_id)
        if is_invitation(certificate):
            return Caller(role="applicant", client_id=ClientId(""))
        if key in self._operators_keys():
            return Caller(role="operator", client_id=ClientId(""))
        raise NotInRoster(
            f"The certificate's key is nobody's in epoch {roster.epoch}, nor an operator's."
        )

    def name_of(self, context: Context) -> str:
        """Return what people call a caller, for the log; empty where its certificate says nothing.

        A member is called by its label, an applicant by the name on its invitation.
        """
        certificate = certificate_of(context)
        try:
            client_id = self._members(self._roster()).get(key_of(certificate))
            if client_id is None:
                return name_of(certificate)
        except KeysError:
            return ""
        return self._roster().holder(client_id).label or client_id[:16]

    def check(self, caller: Caller, method: str) -> None:
        """Refuse calls that are not for this caller.

        Raises:
            NotInRoster: an applicant calls what members call.
            RefusedError: the call is for others.
        """
        if caller.role in self._allowed(method):
            return
        if caller.role == "applicant":
            raise NotInRoster("An invitation is good for an application and for nothing else.")
        name = method.rpartition("/")[2]
        raise RefusedError(f"{name} was called by somebody who is {caller.role}.")

    def _allowed(self, method: str) -> frozenset[Role]:
        if method.startswith((ADMIN, REFLECTION)):
            return frozenset({"operator"})
        if method == APPLY:
            # A member applies once more to leave its cell's core.
            return frozenset({"applicant", "member"})
        return frozenset({"revealer"}) if method in SUMS else frozenset({"member", "revealer"})

    def _members(self, roster: Roster) -> dict[bytes, ClientId]:
        """Return the roster's keys, read once for each roster."""
        if self._known is None or self._known[0] is not roster:
            keys = {holder.tls_key: holder.client_id for holder in roster.holders}
            self._known = (roster, keys)
        return self._known[1]

    def _operators_keys(self) -> set[bytes]:
        name = "coordinator.operators"
        raw = read_public(
            self._operators,
            max_bytes=MAX_OPERATORS_BYTES,
            remedy=f"Name the operators' certificates as {name}; `fedrec provision` makes one.",
        )
        found = split_certificates(raw)
        if not found:
            raise KeysError(
                f"{name}: {self._operators} holds no certificate.",
                remedy="Take operator.crt of the key authority's folder.",
            )
        return {key_of(certificate, name) for certificate in found}


def certificate_of(context: Context) -> bytes:
    """Return the certificate (PEM) with which a caller came."""
    found = context.auth_context().get("x509_pem_cert") or [b""]
    return bytes(found[0])


EVERY_SECONDS = 60.0
MOST_KNOWN = 10_000


@dataclass(slots=True)
class _Told:
    """A line, and how many refusals of the same kind came since."""

    at: float
    incident: str
    more: int = 0


class RefusalLog:
    """Writes what was refused.

    Args:
        now: seconds that only grow.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told: dict[tuple[str, str], _Told] = {}

    def tell(self, error: Exception, method: str, client: str) -> str:
        """Log a refusal, or count it; return the incident under which the log has it.

        Args:
            client: what people call the caller; empty where nobody knows.
        """
        code = error.code if isinstance(error, FedrecError) else InternalError.code
        known, now = self._told.get((client, code)), self._now()
        if known is not None and now < known.at + EVERY_SECONDS:
            known.more += 1
            return known.incident
        if len(self._told) >= MOST_KNOWN:
            recent = now - EVERY_SECONDS
            self._told = {key: told for key, told in self._told.items() if told.at > recent}
        incident = new_incident()
        self._told[client, code] = _Told(at=now, incident=incident)
        about: dict[str, object] = {"client": client} if client else {}
        if known is not None and known.more:
            about["more_since_the_last_line"] = known.more
        log = structlog.get_logger().bind(method=method.rpartition("/")[2], incident=incident)
        if isinstance(error, FedrecError):
            log.info("call refused", code=code, why=error.message, **about)
        else:
            log.error("call failed", exc_info=error, **about)
        return incident
