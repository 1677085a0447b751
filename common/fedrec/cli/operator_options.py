"""How operators' commands are told where the coordinator is and who calls."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import FedrecError, Unreachable
from fedrec.listening import split_address

if TYPE_CHECKING:
    from fedrec.wire.admin_link import AdminLink

__all__ = ["Address", "OperatorFile", "open_admin_link"]

# Beside oneself, as it is carried to an operator and as it lies in the authority's own folder; in
# a set of kits.
_USUAL_PLACES = (Path("operator.pem"), Path("kits/authority/operator.pem"))

_CONNECT_SECONDS = 5.0

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the coordinator.")]
OperatorFile = Annotated[
    Path | None,
    typer.Option(
        "--operator",
        help="An operator's key and certificate, which the key authority made; by default "
        "operator.pem here, or in kits/authority.",
    ),
]


@contextmanager
def open_admin_link(address: str, operator: Path | None) -> Iterator[AdminLink]:
    """Open a link to the operators' service; nothing is sent yet.

    Args:
        address: host:port of the coordinator.
        operator: the operator's file; None looks for it in the usual places.

    Raises:
        KeysError: when the operator's file cannot be used.
        CertificateExpired: when this machine's clock is outside the certificate's dates.
        Unreachable: in the body, when nobody answered: with what a plain connection came to.
    """
    from fedrec.identity.certificates import Credentials
    from fedrec.wire.admin_link import AdminLink

    if operator is None:
        operator = next((path for path in _USUAL_PLACES if path.exists()), _USUAL_PLACES[0])
    link = AdminLink(address, Credentials.load(operator, "--operator"))
    with closing(link):
        try:
            yield link
        except Unreachable as error:
            raise _explained(error, address) from None


def _explained(error: FedrecError, address: str) -> Unreachable:
    """Return why a coordinator did not answer: gRPC has one word for all cases."""
    host, port = split_address(address, "ADDRESS")
    remedy = "Check the address, and that the coordinator runs there."
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except TimeoutError:
        return Unreachable(f"{address} does not answer, not even to refuse.", remedy=remedy)
    except socket.gaierror:
        return Unreachable(f"No machine by the name {host} is known here.", remedy=remedy)
    except OSError as found:
        said = (found.strerror or str(found)).lower()
        return Unreachable(f"Nobody listens at {address}: {said}.", remedy=remedy)
    from fedrec.wire.error_status import REFUSED_UNHEARD

    if error.message != REFUSED_UNHEARD:
        return Unreachable(error.message, remedy=remedy)
    return Unreachable(
        f"Somebody listens at {address}, but the handshake failed: the operator's certificate and "
        "that coordinator are not of one federation, or a clock is wrong.",
        remedy="Give with --operator the operator.pem that this federation's key authority made, "
        f"and check that {host} is a host in the coordinator's certificate.",
    )
