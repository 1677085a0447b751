"""Who may ask, and reading what is asked strictly and within limits, or refusing it.

A web page that somebody looks at can make their browser call this machine. Two things tell it: the
Host header, which after DNS rebinding names the page's host and never an address; and what browsers
say of who asks (Origin, Sec-Fetch-Site). No answer ever allows another site to read it.
"""

from __future__ import annotations

import difflib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from fedrec.listening import names_server


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalKind:
    """One code: the HTTP status, and a sentence for the documentation."""

    status: int
    meaning: str


REFUSALS: dict[str, RefusalKind] = {
    "malformed": RefusalKind(status=400, meaning="The request is not what the document describes."),
    "unauthorised": RefusalKind(status=401, meaning="The token is missing or wrong."),
    "cross_origin": RefusalKind(status=403, meaning="A page of another site asks."),
    "not_found": RefusalKind(status=404, meaning="There is nothing at this path."),
    "unknown_user": RefusalKind(status=404, meaning="This client has no such user."),
    "unknown_item": RefusalKind(status=404, meaning="The catalogue has no such item."),
    "wrong_method": RefusalKind(status=405, meaning="The path takes other methods."),
    "too_slow": RefusalKind(status=408, meaning="The request did not arrive in time."),
    "too_large": RefusalKind(status=413, meaning="The body is larger than is read."),
    "not_json": RefusalKind(status=415, meaning="A body has to be application/json."),
    "foreign_host": RefusalKind(
        status=421, meaning="The Host header names another host than this server goes by."
    ),
    "never_learned": RefusalKind(
        status=422, meaning="Too few users hold the items for the model to have learned them."
    ),
    "no_fold_in": RefusalKind(
        status=422, meaning="The algorithm makes no user of a history; ask for a known user."
    ),
    "head_too_large": RefusalKind(status=431, meaning="The address and headers are too long."),
    "internal": RefusalKind(status=500, meaning="A defect; the log has the details."),
    "not_ready": RefusalKind(
        status=503, meaning="There is no model yet, or it cannot be read; it is tried again."
    ),
    "too_busy": RefusalKind(status=503, meaning="There are too many connections at once."),
}
"""By code; codes are stable."""


class Refusal(Exception):
    """A request that is not answered.

    Args:
        code: one of `REFUSALS`.
        message: what was found and what was expected.
        remedy: what who asks should do next.
        retry_after_seconds: when to ask again, where that helps.
    """

    def __init__(
        self, code: str, message: str, remedy: str = "", *, retry_after_seconds: int = 0
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = REFUSALS[code].status
        self.message = message
        self.remedy = remedy
        self.retry_after_seconds = retry_after_seconds


DEFAULT_N = 10
MOST_N = 1000
"""Items that one answer has, at most."""
MOST_IDS = 10_000
"""Ids in one list."""
MOST_BODY_BYTES = 256 << 10
MOST_PARAMETERS = 1000
"""Parameters in an address; longer lists go into a body."""

RECOMMEND_FIELDS: dict[str, str] = {
    "user": "text",
    "history": "ids",
    "recent": "ids",
    "n": "count",
    "exclude_seen": "flag",
    "exclude": "ids",
    "candidates": "ids",
    "ignore_unknown": "flag",
}
"""What each field of a question for recommendations is."""
SIMILAR_FIELDS: dict[str, str] = {
    "item": "text",
    "n": "count",
    "exclude": "ids",
    "candidates": "ids",
    "ignore_unknown": "flag",
}
_FLAGS = {"true": True, "false": False}
_Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommend:
    """A question for recommendations: of a known user, or of somebody with a history.

    Attributes:
        user: empty for somebody new.
        history: items of somebody new.
        recent: what a known user has had since; folded in with all that the user had before.
        ignore_unknown: leave items out that the catalogue has not, in place of a refusal.
    """

    user: str = ""
    history: tuple[str, ...] = ()
    recent: tuple[str, ...] = ()
    n: int = DEFAULT_N
    exclude_seen: bool = True
    exclude: tuple[str, ...] = ()
    candidates: tuple[str, ...] | None = None
    ignore_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """A question for items like one."""

    item: str
    n: int = DEFAULT_N
    exclude: tuple[str, ...] = ()
    candidates: tuple[str, ...] | None = None
    ignore_unknown: bool = False


def recommend_question(given: _Given) -> Recommend:
    """Return a question for recommendations.

    Raises:
        Refusal: it names neither a user nor a history, or both, or the history has no item.
    """
    found = Recommend(**given)
    if bool(found.user) == ("history" in given):
        raise Refusal(
            "malformed",
            "Either a user or a history is needed, and not both.",
            "Give user, with recent for what they have had since; or history for a new user.",
        )
    if not found.user and not found.history:
        raise Refusal(
            "malformed", "history has no item.", "Give the items that somebody new has had."
        )
    if found.recent and not found.user:
        raise Refusal("malformed", "recent needs a user.", "Give history for somebody new.")
    return found


def similar_question(given: _Given) -> Similar:
    """Return a question for similar items.

    Raises:
        Refusal: it names no item.
    """
    if "item" not in given:
        raise Refusal("malformed", "An item is needed.", "Give item, as the catalogue names it.")
    return Similar(**given)


def from_query(query: bytes, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that an address gives; lists are repeated parameters.

    Raises:
        Refusal: it cannot be read, or a field is unknown, twice or out of range.
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=MOST_PARAMETERS,
        )
    except ValueError as error:
        raise Refusal(
            "malformed",
            f"The address cannot be read: {error}.",
            f"Percent-encode ids as UTF-8, give at most {MOST_PARAMETERS} parameters, and send "
            "longer lists in the body of a POST.",
        ) from None
    found: dict[str, Any] = {}
    for name, text in pairs:
        kind = fields.get(name)
        if kind is None:
            raise _unknown(name, fields)
        if kind == "ids":
            found[name] = (*found.get(name, ()), _text(name, text))
            continue
        if name in found:
            raise Refusal("malformed", f"{name} is given twice.", "Give it once.")
        if kind == "count":
            # What int() takes besides, as in "1_0" or " 1", is a mistake here.
            found[name] = _count(name, int(text) if _is_short_number(text) else text)
        elif kind == "flag":
            found[name] = _flag(name, _FLAGS.get(text, text))
        else:
            found[name] = _text(name, text)
    return found


def from_body(body: bytes, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Raises:
        Refusal: it is none, or a field is unknown or out of range.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(
            "malformed", f"The body is no JSON ({type(error).__name__}).", "Send one object."
        ) from None
    if not isinstance(given, dict):
        raise Refusal("malformed", "The body is no JSON object.", "Send one object.")
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = fields.get(name)
        if kind is None:
            raise _unknown(name, fields)
        if kind == "ids":
            found[name] = _ids(name, value)
        elif kind == "count":
            found[name] = _count(name, value)
        elif kind == "flag":
            found[name] = _flag(name, value)
        else:
            found[name] = _text(name, value)
    return found


def _is_short_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Refusal("malformed", f"{name} has an id that is no text, or empty.", "Give an id.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refusal("malformed", f"{name} is not Unicode text.", "Give an id.") from None
    return value


def _ids(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_IDS:
        raise Refusal(
            "malformed",
            f"{name} is no list of at most {MOST_IDS} ids.",
            f'Give a list, as in {{"{name}": ["50", "181"]}}.',
        )
    return tuple(_text(name, entry) for entry in value)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_N:
        raise Refusal(
            "malformed",
            f"{name} is no whole number from 1 to {MOST_N}.",
            f"Give {name} = {DEFAULT_N}, for example.",
        )
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise Refusal("malformed", f"{name} is neither true nor false.", "Give true or false.")
    return value


def _unknown(name: str, fields: Mapping[str, str]) -> Refusal:
    near = difflib.get_close_matches(name[:40], fields, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return Refusal(
        "malformed",
        f"{name[:40]!r} is no field here.{hint}",
        f"The fields are {', '.join(fields)}.",
    )


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
