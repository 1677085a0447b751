"""A link that outlives a coordinator's restart, counts bytes, and waits until it is stopped."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, TypeVar, cast

from fedrec.errors import (
    CorruptUpload,
    FedrecError,
    InternalError,
    StorageError,
    TooLarge,
    Unreachable,
)
from fedrec.processes import on_stop_signals
from fedrec.wire.link import Link
from fedrec.wire.messages import (
    FederationInfo,
    PublishedRound,
    Report,
    Reveal,
    RevealStatement,
    Snapshot,
    StepMessage,
    Task,
    UploadHeader,
)

_T = TypeVar("_T")

_LOOK_SECONDS = 0.25
# Time for an abandoned call to arrive, so that a goodbye doesn't overtake it.
_ARRIVES_SECONDS = 0.5


class Stopped(BaseException):
    """The process was asked to stop. Like KeyboardInterrupt, this isn't an error."""


class StopSwitch:
    """Record a request to stop. It interrupts waiting but never writing.

    Everything on disk changes in one step, so stopping between two steps loses nothing.
    """

    def __init__(self) -> None:
        self._requested = False
        self._interruptible = False

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self._requested

    def request(self) -> None:
        """Stop the process at the next safe point.

        Raises:
            Stopped: at once, if the process is only waiting.
            KeyboardInterrupt: at the second request.
        """
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        if self._interruptible:
            raise Stopped

    def check(self) -> None:
        """Raise `Stopped` if a stop was requested."""
        if self._requested:
            raise Stopped

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Mark a block in which the process waits for other parties and writes nothing."""
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def aside(self, call: Callable[[], _T]) -> _T:
        """Return a call's result.

        The call runs in its own thread, and a request to stop ends the wait.

        A signal inside gRPC could leave one of its locks taken forever, and closing the channel
        would never return. Here a signal only interrupts waiting.

        Raises:
            Stopped: a stop was requested. The call is abandoned.
        """
        done = threading.Event()
        results: list[_T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)
            done.set()

        with self.interruptible():
            try:
                threading.Thread(target=work, name="call", daemon=True).start()
                # A signal just before the wait begins doesn't wake it, so check again.
                while not done.wait(_LOOK_SECONDS):
                    pass
            except Stopped:
                done.wait(_ARRIVES_SECONDS)
                raise
        if errors:
            raise errors[0]
        return results[0]

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Trigger this switch on SIGINT, SIGTERM and SIGHUP. Works in the main thread only."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.request()

        with on_stop_signals(ask):
            yield


class Backoff:
    """Wait for random times below a doubling limit.

    Args:
        stop: ends a pause early.
        sleep: waits for a number of seconds.
        jitter: returns a number from 0 to 1.
        base_seconds: the limit of the first pause.
        cap_seconds: the largest limit.
        maximum_attempts: failed attempts in a row after which to give up. 0 never gives up.
    """

    def __init__(
        self,
        stop: StopSwitch,
        *,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        base_seconds: float = 0.25,
        cap_seconds: float = 10.0,
        maximum_attempts: int = 0,
    ) -> None:
        self.stop = stop
        self.maximum_attempts = maximum_attempts
        self._sleep = sleep
        self._jitter = jitter
        self._base = base_seconds
        self._cap = cap_seconds

    def pause(self, attempt: int) -> float:
        """Wait after an attempt, numbered from 0. Return the seconds waited."""
        seconds = self._jitter() * min(self._cap, self._base * 2.0 ** min(attempt, 30))
        with self.stop.interruptible():
            self._sleep(seconds)
        return seconds


PASSING = (Unreachable, StorageError, InternalError, TooLarge)
"""Errors of the coordinator that pass by themselves.

It is down, its disk is full, it failed, its limits are too low, or it still counts broken streams.
"""
CORRUPT_TRIES = 5


@dataclass(slots=True)
class Meter:
    """Count bytes sent and received: payloads, and signed headers and statements."""

    sent: int = 0
    received: int = 0


def patient_link(
    link: Link,
    meter: Meter,
    backoff: Backoff,
    on_trouble: Callable[[FedrecError], None],
    *,
    on_answer: Callable[[int], None] = lambda failed: None,
) -> Link:
    """Return a link that repeats every call on another link until the coordinator answers.

    Every call of the protocol is idempotent, so repeating it is always safe.

    Args:
        link: the link to call.
        meter: counts the bytes of every attempt.
        backoff: how long to pause, what interrupts it, and after how many attempts to give up.
        on_trouble: called with the failure, once until another one occurs.
        on_answer: called with the number of failed attempts, once one succeeds.
    """

    def call(method: Callable[..., Any], /, *sent: Any, **named: Any) -> Any:
        attempt, corrupt, reported = 0, 0, ""
        while True:
            meter.sent += _payload_bytes(*sent)
            try:
                answer = backoff.stop.aside(partial(method, *sent, **named))
            except PASSING as error:
                if 0 < backoff.maximum_attempts <= attempt + 1:
                    raise
                problem: FedrecError = error
            except CorruptUpload as error:
                # Counted separately: a line that was down for an hour breaks streams when it comes
                # back.
                corrupt += 1
                if corrupt == CORRUPT_TRIES:
                    raise
                problem = error
            else:
                meter.received += _payload_bytes(answer)
                if attempt:
                    on_answer(attempt)
                return answer
            # Every answer of a coordinator with a full disk has its own incident.
            trouble = problem.message.replace(problem.incident, "")
            if trouble != reported:
                on_trouble(problem)
                reported = trouble
            backoff.pause(attempt)
            attempt += 1
            if "wait_seconds" in named:
                # A long poll would report that the coordinator answers only when it ends.
                named["wait_seconds"] = 0.0

    # It has the link's methods with their types.
    return cast(Link, _Called(link, call))


class _Called:
    """Send every call of a link but `close` through one function."""

    def __init__(self, link: Link, call: Callable[..., Any]) -> None:
        self._link = link
        self._call = call

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._link, method))

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def _payload_bytes(*values: object) -> int:
    """Return the number of payload or signed bytes in a call's arguments or result."""
    total = 0
    for value in values:
        match value:
            case bytes():
                total += len(value)
            case UploadHeader() | RevealStatement() | Report() | StepMessage():
                total += len(value.statement()) + len(value.signature)
            case FederationInfo():
                total += _payload_bytes(value.plan_json, value.roster_json)
                total += _payload_bytes(value.server_context, value.wrapped_secrets)
            case PublishedRound():
                total += _payload_bytes(value.blob, value.statement, *value.contributions)
            case Snapshot():
                total += _payload_bytes(value.blob, value.statement, *value.reports)
            case Task(task=Reveal(contributions=contributions)):
                total += _payload_bytes(*contributions)
            case _:
                pass
    return total
