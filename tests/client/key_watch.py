"""A watch on a client's key, and what must be seen where it refuses to use it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from client.fake_federation import FakeRound, World

from fedrec.wire.messages import Reveal
from fedrec_client.enrolment import enrol
from fedrec_client.membership import Membership


class KeyWatch:
    """Stands for the member that holds the key, and counts every use of it."""

    def __init__(self, member: Any, opened: list[bytes] | None = None) -> None:
        self._member = member
        self.opened: list[bytes] = [] if opened is None else opened

    def over(self, protection: Any) -> Any:
        return KeyWatch(self._member.over(protection), self.opened)

    def protect(self, vector: Any, name: bytes = b"") -> bytes:
        return self._member.protect(vector, name)  # type: ignore[no-any-return]

    def reveal(self, total: bytes, n_summands: int, names: Any = None) -> Any:
        self.opened.append(total)
        return self._member.reveal(total, n_summands, names)

    def close(self) -> None:
        self._member.close()


def put_watch(monkeypatch: pytest.MonkeyPatch, module: str = "fedrec_client.app") -> KeyWatch:
    """Put a watch on the key of whatever client is started.

    Args:
        module: where it enrols.
    """
    watch = KeyWatch(None)

    def watched(*arguments: Any, **options: Any) -> Membership:
        membership = enrol(*arguments, **options)
        watch._member = membership.member
        return replace(membership, member=watch)  # type: ignore[arg-type]

    monkeypatch.setattr(f"{module}.enrol", watched)
    return watch


def ask(world: World, task: Callable[[], Reveal]) -> None:
    world.link.script.append(task)
    world.app().run()


def puppet_round(world: World, number: int = 1) -> FakeRound:
    """Open a round that only puppets take part in; the client is a bystander with a key."""
    round_ = world.open(number)
    world.contribute(round_)
    return round_


def refused(world: World, key: KeyWatch, *words: str) -> None:
    assert world.link.reveals == []
    assert key.opened == []
    assert "reveal_refused" in world.event_names()
    assert '"event":"reveal_refused"' in world.audit()
    for word in words:
        assert word in world.audit()
