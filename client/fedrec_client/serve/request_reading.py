"""Check which requests are allowed, and read them strictly and within limits.

A web page can make a browser call this machine. Two headers reveal that: Host, which after DNS
rebinding has the page's name and never an address, and Origin or Sec-Fetch-Site, with which
browsers name the page. No answer ever allows another site to read it.
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
    """A code with its HTTP status and a sentence for the documentation."""

    status: int
    meaning: str


REFUSALS: dict[str, RefusalKind] = {
    "malformed": RefusalKind(status=400, meaning="The request does not match the document."),
    "unauthorised": RefusalKind(status=401, meaning="The token is missing or wrong."),
    "cross_origin": RefusalKind(status=403, meaning="The request comes from another site's page."),
    "not_found": RefusalKind(status=404, meaning="There is nothing at this path."),
    "unknown_user": RefusalKind(status=404, meaning="This client has no such user."),
    "unknown_item": RefusalKind(status=404, meaning="The catalogue has no such item."),
    "wrong_method": RefusalKind(status=405, meaning="The path does not support this method."),
    "too_slow": RefusalKind(status=408, meaning="The request did not arrive in time."),
    "too_large": RefusalKind(status=413, meaning="The body is too large."),
    "not_json": RefusalKind(status=415, meaning="The body must be application/json."),
    "foreign_host": RefusalKind(status=421, meaning="The Host header does not name this server."),
    "never_learned": RefusalKind(
        status=422, meaning="The items have too few users, so the model has not learned them."
    ),
    "no_fold_in": RefusalKind(
        status=422,
        meaning="The algorithm cannot compute a user from a history. Ask for a known user.",
    ),
    "head_too_large": RefusalKind(status=431, meaning="The address and headers are too long."),
    "internal": RefusalKind(status=500, meaning="A defect. The log has the details."),
    "not_ready": RefusalKind(
        status=503, meaning="There is no model yet, or it cannot be read. Reading is tried again."
    ),
    "too_busy": RefusalKind(status=503, meaning="There are too many connections at once."),
}
"""Kinds of refusals by their codes, which are stable."""


class Refusal(Exception):
    """A refused request.

    Args:
        code: one of `REFUSALS`.
        message: what was found and what was expected.
        remedy: the advice for the sender.
        retry_after_seconds: when to ask again, if that helps.
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
"""The largest number of items in an answer."""
MOST_IDS = 10_000
"""The largest number of ids in a list."""
MOST_OF_BATCH = 100_000
"""The largest number of users of a batch times the items for each."""
MOST_BODY_BYTES = 256 << 10
MOST_PARAMETERS = 1000
"""The largest number of parameters in an address. Longer lists go into a body."""

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
"""The kind of each field of a request for recommendations."""
BATCH_FIELDS = {"users": "ids"} | {
    name: kind
    for name, kind in RECOMMEND_FIELDS.items()
    if name not in ("user", "history", "recent")
}
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
    """A request for recommendations, for a known user or for a history.

    Attributes:
        user: the user, or empty for a new one.
        history: the items of a new user.
        recent: items that a known user has had since, folded in with the whole history.
        ignore_unknown: skip items outside the catalogue instead of refusing them.
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
class RecommendBatch:
    """A request for the recommendations of several known users."""

    users: tuple[str, ...]
    n: int = DEFAULT_N
    exclude_seen: bool = True
    exclude: tuple[str, ...] = ()
    candidates: tuple[str, ...] | None = None
    ignore_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """A request for similar items."""

    item: str
    n: int = DEFAULT_N
    exclude: tuple[str, ...] = ()
    candidates: tuple[str, ...] | None = None
    ignore_unknown: bool = False


def recommend_question(given: _Given) -> Recommend:
    """Return a request for recommendations from its fields.

    Raises:
        Refusal: the request does not have exactly one of user and history, or the history is empty.
    """
    found = Recommend(**given)
    if bool(found.user) == ("history" in given):
        raise Refusal(
            "malformed",
            "Either a user or a history is needed, but not both.",
            "Pass user, with recent for new items. Or pass history for a new user.",
        )
    if not found.user and not found.history:
        raise Refusal(
            "malformed", "history has no item.", "Pass the items that the new user has had."
        )
    if found.recent and not found.user:
        raise Refusal("malformed", "recent needs a user.", "Pass history for a new user.")
    return found


def batch_question(given: _Given) -> RecommendBatch:
    """Return a request for several users' recommendations from its fields.

    Raises:
        Refusal: the request names no user, or asks for too many items.
    """
    found = RecommendBatch(
        users=given.get("users", ()), **{k: v for k, v in given.items() if k != "users"}
    )
    if not found.users:
        raise Refusal("malformed", "Users are needed.", "Pass users, as in the data file.")
    if len(found.users) * found.n > MOST_OF_BATCH:
        raise Refusal(
            "malformed",
            f"{len(found.users)} users with {found.n} items each are more than {MOST_OF_BATCH} "
            "items.",
            "Ask for fewer users at a time, or use `fedrec client export` for all of them.",
        )
    return found


def similar_question(given: _Given) -> Similar:
    """Return a request for similar items from its fields.

    Raises:
        Refusal: the request names no item.
    """
    if "item" not in given:
        raise Refusal("malformed", "An item is needed.", "Pass item, as in the catalogue.")
    return Similar(**given)


def from_query(query: bytes, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields in an address. Lists are repeated parameters.

    Raises:
        Refusal: the address cannot be read, or a field is unknown, repeated or out of range.
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
            raise Refusal("malformed", f"{name} is given twice.", "Pass it once.")
        if kind == "count":
            # int() also accepts forms such as "1_0" or " 1", which are mistakes here.
            found[name] = _count(name, int(text) if _is_short_number(text) else text)
        elif kind == "flag":
            found[name] = _flag(name, _FLAGS.get(text, text))
        else:
            found[name] = _text(name, text)
    return found


def from_body(body: bytes, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Raises:
        Refusal: the body is not a JSON object, or a field is unknown or out of range.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(
            "malformed", f"The body is not JSON ({type(error).__name__}).", "Send one object."
        ) from None
    if not isinstance(given, dict):
        raise Refusal("malformed", "The body is not a JSON object.", "Send one object.")
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
        raise Refusal("malformed", f"{name} has an id that is not text, or empty.", "Pass an id.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refusal("malformed", f"{name} is not Unicode text.", "Pass an id.") from None
    return value


def _ids(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_IDS:
        raise Refusal(
            "malformed",
            f"{name} is not a list of at most {MOST_IDS} ids.",
            f'Pass a list, as in {{"{name}": ["50", "181"]}}.',
        )
    return tuple(_text(name, entry) for entry in value)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_N:
        raise Refusal(
            "malformed",
            f"{name} is not a whole number from 1 to {MOST_N}.",
            f"Pass {name} = {DEFAULT_N}, for example.",
        )
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise Refusal("malformed", f"{name} is neither true nor false.", "Pass true or false.")
    return value


def _unknown(name: str, fields: Mapping[str, str]) -> Refusal:
    near = difflib.get_close_matches(name[:40], fields, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return Refusal(
        "malformed",
        f"{name[:40]!r} is not a field of this request.{hint}",
        f"The fields are {', '.join(fields)}.",
    )


_OWN_PAGES = (b"same-origin", b"none")
_MOST_KNOWN = 64

Headers = Iterable[tuple[bytes, bytes]]


class Gate:
    """Check the headers of every request.

    Args:
        names: host names of the server, in addition to localhost and addresses.
        token: the required token in `Authorization: Bearer`, or empty.
    """

    def __init__(self, names: Sequence[str] = (), *, token: str = "") -> None:
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._expected = f"Bearer {token}".encode() if token else b""
        self._known: set[bytes] = set()

    def check(self, headers: Headers) -> None:
        """Check the host and the calling page of a request.

        Raises:
            Refusal: the request names a different host, or a page of a different site sent it.
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
                "The Host header does not name this server.",
                "Use its address or localhost, or start the server with --allow-host NAME.",
            )
        if origin and origin.partition(b"://")[2] != hosts[0]:
            raise _cross_origin()

    def allows(self, headers: Headers) -> bool:
        """Return whether a request has the token, if one is required."""
        if not self._expected:
            return True
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)

    def check_token(self, headers: Headers) -> None:
        """Check the token of a request for data about people.

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
        "The request comes from another site's page.",
        "Send it from a program, or from a page of this server.",
    )
