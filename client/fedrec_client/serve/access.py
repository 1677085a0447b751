"""Who may ask: the hosts that a server goes by, pages of its own, and the token.

A web page that somebody looks at can make their browser call this machine. Two things tell it: the
Host header, which after DNS rebinding names the page's host and never an address; and what browsers
say of who asks (Origin, Sec-Fetch-Site). No answer ever allows another site to read it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

from fedrec.listening import names_server
from fedrec_client.serve.request_reading import Refusal

_OWN_PAGES = (b"same-origin", b"none")
_MOST_KNOWN = 64

Headers = Iterable[tuple[bytes, bytes]]


class Gate:
    """Checks the headers of every request.

    Args:
        names: host names that the server goes by, besides localhost and every address.
        token: what `Authorization: Bearer` has to carry; empty for none.
    """

    def __init__(self, names: Sequence[str] = (), *, token: str = "") -> None:
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._expected = f"Bearer {token}".encode() if token else b""
        self._known: set[bytes] = set()

    def check(self, headers: Headers) -> None:
        """Let a request in, as far as its host and the page that asks are concerned.

        Raises:
            Refusal: it names another host, or a page of another site asks.
        """
        hosts, origin = [], b""
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site" and value not in _OWN_PAGES:
                raise _cross_origin()
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            raise Refusal(
                "foreign_host",
                "The Host header names another host than this server goes by.",
                "Call it by its address, by localhost, or start it with --allow-host NAME.",
            )
        if origin and origin.partition(b"://")[2] != hosts[0]:
            raise _cross_origin()

    def allows(self, headers: Headers) -> bool:
        """Return whether a request carries the token, where there is one."""
        if not self._expected:
            return True
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)

    def check_token(self, headers: Headers) -> None:
        """Let a request see what is about people.

        Raises:
            Refusal: the token is missing or wrong.
        """
        if not self.allows(headers):
            raise Refusal(
                "unauthorised",
                "The token is missing or wrong.",
                "Send the header `Authorization: Bearer TOKEN` with the content of the token file.",
            )

    def _is_own(self, host: bytes) -> bool:
        if host in self._known:
            return True
        found = names_server(host.decode("latin-1"), self._names)
        if found and len(self._known) < _MOST_KNOWN:
            self._known.add(host)
        return found


def _cross_origin() -> Refusal:
    return Refusal(
        "cross_origin",
        "A page of another site asks.",
        "Ask from a program, or from a page that this server shows.",
    )
