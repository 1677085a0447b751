"""The operators, which may call the coordinator's service: the authority's process, and people."""

from __future__ import annotations

from pathlib import Path

from fedrec.errors import KeysError
from fedrec.identity.certificates import Issuer, name_of, split_certificates
from fedrec.identity.document import read_public, replace_secret, write_public

OWN = "operator"
MAX_BYTES = 1 << 20


class Operators:
    """The operators' certificates, and the credentials of the authority's own process.

    Args:
        path: the authority's folder.

    Attributes:
        own: the credentials of the authority's process.
        list: all certificates, concatenated, for the coordinator.
    """

    def __init__(self, path: Path) -> None:
        self.own = path / "operator.pem"
        self.list = path / "operator.crt"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of operators other than the authority's process."""
        return tuple(sorted(name for name in self._known() if name != OWN))

    def _known(self) -> dict[str, bytes]:
        if not self.list.exists():
            return {}
        raw = read_public(self.list, max_bytes=MAX_BYTES, remedy="Restore it from a backup.")
        return {name_of(certificate): certificate for certificate in split_certificates(raw)}


class OperatorChanges(Operators):
    """The operators, for the process that may change the folder."""

    def make_own(self, issuer: Issuer) -> None:
        """Write the process's own credentials, unless they exist."""
        if not self.own.exists():
            self._make(issuer, OWN, self.own)

    def make(self, issuer: Issuer, name: str, into: Path) -> None:
        """Write an operator's credentials, replacing earlier ones with that name.

        Raises:
            KeysError: the name is that of the authority's process.
        """
        if name == OWN:
            raise KeysError(
                f"{OWN!r} is the authority's own process.", remedy="Choose another name."
            )
        self._make(issuer, name, into)

    def remove(self, name: str) -> None:
        """Remove an operator from the list.

        Raises:
            KeysError: no operator has this name.
        """
        known = self._known()
        if name == OWN or name not in known:
            raise KeysError(
                f"There is no operator {name!r}.",
                remedy=f"Operators are: {', '.join(self.names) or 'none'}.",
            )
        del known[name]
        self._keep(known)

    def renew(self, issuer: Issuer) -> tuple[str, ...]:
        """Start a new list with the process's own certificate, and return the removed names."""
        others = self.names
        self._keep({})
        self._make(issuer, OWN, self.own)
        return others

    def _make(self, issuer: Issuer, name: str, into: Path) -> None:
        made = issuer.credentials("operator", name)
        self._keep({**self._known(), name: made.certificate})
        replace_secret(into, made.to_pem())

    def _keep(self, known: dict[str, bytes]) -> None:
        write_public(self.list, b"".join(known.values()))
