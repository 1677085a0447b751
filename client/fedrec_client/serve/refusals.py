"""What a request is refused with: stable codes, their statuses and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REFUSALS", "Refusal", "RefusalKind"]


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
