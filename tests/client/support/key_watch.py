"""A watch on the key authority's key."""

from dataclasses import replace
from typing import Any

import pytest

from fedrec.follower.enrolment import enrol
from fedrec.follower.membership import Membership


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


def put_watch(monkeypatch: pytest.MonkeyPatch) -> KeyWatch:
    """Put a watch on the key of the authority's revealer that is started."""
    watch = KeyWatch(None)

    def watched(*arguments: Any, **options: Any) -> Membership:
        membership = enrol(*arguments, **options)
        watch._member = membership.member
        return replace(membership, member=watch)  # type: ignore[arg-type]

    monkeypatch.setattr("fedrec_authority.opening.revealer.enrol", watched)
    return watch
