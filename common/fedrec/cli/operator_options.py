"""How operators' commands are told where the coordinator is and what opens it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import SettingsError

if TYPE_CHECKING:
    from fedrec.wire.admin_link import AdminLink
    from fedrec.wire.link import Link

__all__ = [
    "Address",
    "Plaintext",
    "RootCertificate",
    "TokenFile",
    "open_admin_link",
    "open_client_link",
]

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the coordinator.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the operators' token (coordinator.admin_token_file).")
]
RootCertificate = Annotated[
    Path | None, typer.Option(help="Certificate that signs the coordinator's (PEM).")
]
Plaintext = Annotated[
    bool, typer.Option("--plaintext", help="Call without TLS; to loopback addresses only.")
]


def open_admin_link(
    address: str, token_file: Path | None, root_certificate: Path | None, plaintext: bool
) -> AdminLink:
    """Return a link to the operators' service; nothing is sent yet.

    Raises:
        SettingsError: when a file cannot be read, or plaintext leaves this machine.
    """
    from fedrec.wire.admin_link import AdminLink

    return AdminLink(
        address,
        token=_token(token_file),
        root_certificate=_read(root_certificate, "--root-certificate") or None,
        plaintext=plaintext,
    )


def open_client_link(
    address: str, token_file: Path | None, root_certificate: Path | None, plaintext: bool
) -> Link:
    """Return a link to the clients' service, for whoever opens sums with the operators' token.

    Raises:
        SettingsError: when there is no token, a file cannot be read, or plaintext leaves this
            machine.
    """
    from fedrec.wire.grpc_link import GrpcLink

    if token_file is None:
        raise SettingsError(
            "Opening the rounds' sums takes the operators' token.",
            remedy="Give the file that coordinator.admin_token_file names as --token-file.",
        )
    return GrpcLink(
        address,
        token=_token(token_file),
        root_certificate=_read(root_certificate, "--root-certificate") or None,
        plaintext=plaintext,
        attempts=1,
    )


def _token(path: Path | None) -> str:
    token = _read(path, "--token-file").decode("ascii", "replace").strip()
    if not token.isprintable():
        raise SettingsError(
            f"--token-file: {path} does not hold one line of printable characters.",
            remedy="Use the file that coordinator.admin_token_file names.",
        )
    return token


def _read(path: Path | None, option: str) -> bytes:
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{option}: {path} cannot be read: {error.strerror}.", remedy="Check the path."
        ) from None
