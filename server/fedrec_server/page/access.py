"""Who may look where a page can be reached by others: one-time links, and the sessions they open.

Tokens are kept as digests, in memory: after a restart nobody is let in without a new link.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

from fedrec.clock import Clock

__all__ = ["LINK_SECONDS", "MOST_SESSIONS", "SESSION_SECONDS", "Access"]

LINK_SECONDS = 300.0
SESSION_SECONDS = 12 * 3600.0
MOST_LINKS = 16
MOST_SESSIONS = 64
_TOKEN_BYTES = 32


class Access:
    """Makes links, exchanges each for one session, and knows the sessions.

    Args:
        clock: tells the time; a link is good for `LINK_SECONDS`, a session for `SESSION_SECONDS`.
    """

    def __init__(self, clock: Clock) -> None:
        self._links = _Tokens(clock, LINK_SECONDS, MOST_LINKS)
        self._sessions = _Tokens(clock, SESSION_SECONDS, MOST_SESSIONS)

    def new_link(self) -> str:
        """Return a token that opens one session."""
        return self._links.new()

    def open_session(self, link: str) -> str | None:
        """Return a session's token for that of a link, which is good no more; None for others."""
        return self._sessions.new() if self._links.use_up(link) else None

    def allows(self, session: str) -> bool:
        """Tell whether this is the token of a session that is not over."""
        return self._sessions.knows(session)


class _Tokens:
    """Random tokens that are good for a while; the oldest make room for new ones."""

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock, self._seconds, self._most = clock, seconds, most
        self._until: dict[bytes, float] = {}

    def new(self) -> str:
        self._forget()
        while len(self._until) >= self._most:
            del self._until[next(iter(self._until))]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._until[_digest(token)] = self._clock.now() + self._seconds
        return token

    def knows(self, token: str) -> bool:
        # Looked up by its digest: how long that takes tells nothing of the token.
        self._forget()
        return _digest(token) in self._until

    def use_up(self, token: str) -> bool:
        self._forget()
        return self._until.pop(_digest(token), None) is not None

    def _forget(self) -> None:
        now = self._clock.now()
        self._until = {digest: until for digest, until in self._until.items() if until > now}


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
