"""How operators' commands are told where the coordinator is and who calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedrec.wire.admin_link import AdminLink

__all__ = ["Address", "OperatorFile", "open_admin_link"]

# Beside oneself, as it is carried to an operator and as it lies in the authority's own folder; in
# a set of kits.
_USUAL_PLACES = (Path("operator.pem"), Path("kits/authority/operator.pem"))

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the coordinator.")]
OperatorFile = Annotated[
    Path | None,
    typer.Option(
        "--operator",
        help="An operator's key and certificate, which the key authority made; by default "
        "operator.pem here, or in kits/authority.",
    ),
]


def open_admin_link(address: str, operator: Path | None) -> AdminLink:
    """Return a link to the operators' service; nothing is sent yet.

    Args:
        address: host:port of the coordinator.
        operator: the operator's file; None looks for it in the usual places.

    Raises:
        KeysError: when the operator's file cannot be used.
        CertificateExpired: when this machine's clock is outside the certificate's dates.
    """
    from fedrec.identity.certificates import Credentials
    from fedrec.wire.admin_link import AdminLink

    if operator is None:
        operator = next((path for path in _USUAL_PLACES if path.exists()), _USUAL_PLACES[0])
    return AdminLink(address, Credentials.load(operator, "--operator"))
