"""A process that dies at a write: before it, or once a commit is done and nobody heard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from client.support.fake_link import Killed

from fedrec.follower.database import StateDatabase


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Die at the so-and-so-many-th fsync, rename, or beginning or end of a commit."""
    left = [step]

    def pass_one() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def dying(real: Callable[..., Any], *, ends: bool) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            pass_one()
            found = real(*arguments)
            if ends:
                pass_one()
            return found

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "replace"), (StateDatabase, "write")):
            patch.setattr(owner, name, dying(getattr(owner, name), ends=owner is StateDatabase))
        yield
