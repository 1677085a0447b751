"""Identify callers, check what they may call, and log refusals.

The handshake admits every holder of a certificate from the key authority. The roster in force then
gives the caller's role. It is looked up at every call, so that a removed member is refused at its
next one. A message's own claims never count.
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
"""Methods for the revealer only, which opens sums."""
MAX_OPERATORS_BYTES = 1 << 20

Role = Literal["member", "revealer", "operator", "applicant"]
Message = Any
Context = Any
"""Generated messages and gRPC's objects are untyped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A party with a certificate of the federation.

    Attributes:
        client_id: the id of a member or the revealer, or empty for others.
    """

    role: Role
    client_id: ClientId

    def check_named(self, message: Message) -> None:
        """Refuse a message in another party's name.

        Raises:
            WrongIdentity: the client id in the message, its header or its statement is not the id
                of the caller.
        """
        fields = message.DESCRIPTOR.fields_by_name
        if "part" in message.DESCRIPTOR.oneofs_by_name:
            part = message.WhichOneof("part")
            if part in ("header", "statement", "report"):
                self.check_named(getattr(message, part))
        elif "client_id" in fields and message.client_id != self.client_id:
            raise WrongIdentity(
                f"The message names {message.client_id[:16]!r}, but {self.client_id[:16]} sent it."
            )


class Callers:
    """Identifies callers.

    Args:
        roster: returns the roster in force.
        operators: file with the operators' certificates, read at each of their calls.

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
        """Return the caller of a call.

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
            f"The certificate belongs to no member in epoch {roster.epoch}, and to no operator."
        )

    def name_of(self, context: Context) -> str:
        """Return a caller's readable name for the log, or an empty string.

        A member's name is its label, an applicant's the name on its invitation.
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
        """Refuse calls that this caller may not make.

        Raises:
            NotInRoster: an applicant calls a method for members.
            RefusedError: the call is for other roles.
        """
        if caller.role in self._allowed(method):
            return
        if caller.role == "applicant":
            raise NotInRoster("An invitation only allows an application.")
        name = method.rpartition("/")[2]
        raise RefusedError(f"A caller with the role {caller.role} may not call {name}.")

    def _allowed(self, method: str) -> frozenset[Role]:
        if method.startswith((ADMIN, REFLECTION)):
            return frozenset({"operator"})
        if method == APPLY:
            # A member applies again to leave its cell's core.
            return frozenset({"applicant", "member"})
        return frozenset({"revealer"}) if method in SUMS else frozenset({"member", "revealer"})

    def _members(self, roster: Roster) -> dict[bytes, ClientId]:
        """Return the roster's keys, cached for each roster."""
        if self._known is None or self._known[0] is not roster:
            keys = {holder.tls_key: holder.client_id for holder in roster.holders}
            self._known = (roster, keys)
        return self._known[1]

    def _operators_keys(self) -> set[bytes]:
        name = "coordinator.operators"
        raw = read_public(
            self._operators,
            max_bytes=MAX_OPERATORS_BYTES,
            remedy=f"Set {name} to the operators' certificates, from `fedrec provision`.",
        )
        found = split_certificates(raw)
        if not found:
            raise KeysError(
                f"{name}: {self._operators} has no certificate.",
                remedy="Use operator.crt from the key authority's folder.",
            )
        return {key_of(certificate, name) for certificate in found}


def certificate_of(context: Context) -> bytes:
    """Return a caller's certificate (PEM)."""
    found = context.auth_context().get("x509_pem_cert") or [b""]
    return bytes(found[0])


EVERY_SECONDS = 60.0
MOST_KNOWN = 10_000


@dataclass(slots=True)
class _Reported:
    """A log line, and the number of refusals of the same kind since."""

    at: float
    incident: str
    more: int = 0


class RefusalLog:
    """Logs refused calls.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._reported: dict[tuple[str, str], _Reported] = {}

    def tell(self, error: Exception, method: str, client: str) -> str:
        """Log or count a refusal. Return the incident id under which it is logged.

        Args:
            client: the caller's readable name, or empty.
        """
        code = error.code if isinstance(error, FedrecError) else InternalError.code
        known, now = self._reported.get((client, code)), self._now()
        if known is not None and now < known.at + EVERY_SECONDS:
            known.more += 1
            return known.incident
        if len(self._reported) >= MOST_KNOWN:
            recent = now - EVERY_SECONDS
            self._reported = {key: one for key, one in self._reported.items() if one.at > recent}
        incident = new_incident()
        self._reported[client, code] = _Reported(at=now, incident=incident)
        about: dict[str, object] = {"client": client} if client else {}
        if known is not None and known.more:
            about["more_since_the_last_line"] = known.more
        log = structlog.get_logger().bind(method=method.rpartition("/")[2], incident=incident)
        if isinstance(error, FedrecError):
            log.info("call refused", code=code, why=error.message, **about)
        else:
            log.error("call failed", exc_info=error, **about)
        return incident
