"""How operators' commands are told where the coordinator is and who calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedrec.wire.admin_link import AdminLink

__all__ = ["OPERATOR_FILE", "Address", "OperatorFile", "open_admin_link"]

OPERATOR_FILE = Path("keys/operator.pem")

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the coordinator.")]
OperatorFile = Annotated[
    Path,
    typer.Option(
        "--operator", help="An operator's key and certificate, which the key authority made."
    ),
]


def open_admin_link(address: str, operator: Path) -> AdminLink:
    """Return a link to the operators' service; nothing is sent yet.

    Raises:
        KeysError: when the operator's file cannot be used.
        CertificateExpired: when this machine's clock is outside the certificate's dates.
    """
    from fedrec.identity.certificates import Credentials
    from fedrec.wire.admin_link import AdminLink

    return AdminLink(address, Credentials.load(operator, "--operator"))
