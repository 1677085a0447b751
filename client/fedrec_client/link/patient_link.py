"""A link that outlives a coordinator's restart: it asks again until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from fedrec.errors import CorruptUpload, FedrecError, InternalError, StorageError, Unreachable
from fedrec.wire.link import Link
from fedrec_client.link.backoff import Backoff
from fedrec_client.link.metering import Meter, payload_bytes
from fedrec_client.link.stopping import StopSwitch

__all__ = ["patient_link"]

PASSING = (Unreachable, StorageError, InternalError)
"""Troubles of the coordinator that end without us: it is down, its disk is full, it failed."""
CORRUPT_TRIES = 5


def patient_link(
    link: Link,
    meter: Meter,
    stop: StopSwitch,
    backoff: Backoff,
    on_trouble: Callable[[FedrecError], None],
    *,
    on_answer: Callable[[int], None] = lambda failed: None,
    maximum_attempts: int = 0,
) -> Link:
    """Return a link that repeats every call on another one until the coordinator answers.

    Every call of the protocol is idempotent, so repeating one is always safe.

    Args:
        link: the link to be patient with.
        meter: counts what is sent, at every attempt anew, and received.
        stop: interrupts waiting.
        backoff: how long to pause.
        on_trouble: told what failed, once until something else does.
        on_answer: told how many attempts in a row had failed, once one succeeds.
        maximum_attempts: give up after so many in a row; 0 never does.
    """

    def call(method: Callable[..., Any], /, *sent: Any, **named: Any) -> Any:
        attempt, told = 0, ""
        while True:
            meter.sent += payload_bytes(*sent)
            try:
                answer = stop.aside(partial(method, *sent, **named))
            except PASSING as error:
                if attempt + 1 == maximum_attempts:
                    raise
                problem: FedrecError = error
            except CorruptUpload as error:
                if attempt + 1 >= CORRUPT_TRIES:
                    raise
                problem = error
            else:
                meter.received += payload_bytes(answer)
                if attempt:
                    on_answer(attempt)
                return answer
            if problem.message != told:
                on_trouble(problem)
                told = problem.message
            backoff.pause(attempt)
            attempt += 1

    # It has the methods of the link that it calls, with their types.
    return cast(Link, _Called(link, call))


class _Called:
    """Makes every call of a link by one function; closing is none."""

    def __init__(self, link: Link, call: Callable[..., Any]) -> None:
        self._link = link
        self._call = call

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._link, method))

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()
