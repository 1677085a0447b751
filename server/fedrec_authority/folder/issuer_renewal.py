"""Another key for certificates, after a theft; the roster's key, and members' own keys, stay."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.identity.certificates import hosts_of, split_certificates
from fedrec_authority.folder.folder_changes import FolderChanges

__all__ = ["Renewed", "renew_issuer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Whom another issuer leaves without a certificate.

    Attributes:
        operators: the names of those who need other credentials.
        invited: the names of those who need another invitation.
    """

    operators: tuple[str, ...]
    invited: tuple[str, ...]


def renew_issuer(folder: FolderChanges) -> Renewed:
    """Replace the key that issues certificates, and every certificate that came from it.

    The holder of the old key can stand in the coordinator's place on the line. The next epoch
    (`FolderChanges.rotate`) says that there is another, and brings members' certificates. Killed
    in between, the next call does all of it again.

    Raises:
        KeysError: there is no authority, or a file of it cannot be read.
    """
    authority = folder.authority
    hosts: tuple[str, ...] = ()
    if folder.coordinator_path.exists():
        own, *_ = split_certificates(folder.coordinator_path.read_bytes())
        hosts = hosts_of(own)
    authority.renew_issuer(folder.private)
    operators = folder.operators.renew(authority.issuer)
    folder.serve_at(hosts)
    for path in folder.certificates.glob("*.crt"):
        path.unlink()
    return Renewed(operators=operators, invited=folder.invitations.withdraw())
