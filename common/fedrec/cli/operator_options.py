"""How operators' commands are told where the coordinator is and who calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import Unreachable
from fedrec.listening import address_to_call

if TYPE_CHECKING:
    from fedrec.wire.admin_link import AdminLink

__all__ = ["Address", "OperatorFile", "open_admin_link"]

# Beside oneself, as it is carried to an operator and as it lies in the authority's own folder; in
# a set of kits.
_USUAL_PLACES = (Path("operator.pem"), Path("kits/authority/operator.pem"))

_REMEDY = (
    "Check the address, that the coordinator runs there, and that --operator is the operator.pem "
    "that this federation's key authority made."
)

Address = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="host:port of the coordinator.",
        callback=lambda value: address_to_call(value, "ADDRESS"),
    ),
]
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
        Unreachable: in the body, when the coordinator did not answer, and why.
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
            # What a client would look at says nothing to an operator.
            raise type(error)(f"{address}: {error.message}", remedy=_REMEDY) from None
