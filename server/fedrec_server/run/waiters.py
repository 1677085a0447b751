"""Long polls: waiters that are woken only when there is news for them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["Waiter", "Waiters"]

K = TypeVar("K", bound=Hashable)


class Waiter:
    """Hears of news also while it looks, and does not wait as yet."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._woken.set()

    def forget(self) -> None:
        """Forget what came before: it is in what is looked at from here on."""
        self._woken.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait until there is news since the last `forget`; False when the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
            return True
        except TimeoutError:
            return False


class Waiters(Generic[K]):
    """Wakes chosen keys, so that an upload does not wake ten thousand other clients."""

    def __init__(self) -> None:
        self._listening: dict[K, set[Waiter]] = {}

    def __len__(self) -> int:
        """Return how many keys listen."""
        return len(self._listening)

    @contextmanager
    def listening(self, key: K) -> Iterator[Waiter]:
        """Hear of all that happens in the block: there, forget, look, wait, and begin again.

        Who looked before it would miss what comes between the look and the wait.
        """
        waiter = Waiter()
        mine = self._listening.setdefault(key, set())
        mine.add(waiter)
        try:
            yield waiter
        finally:
            mine.discard(waiter)
            if not mine and self._listening.get(key) is mine:
                del self._listening[key]

    def wake(self, keys: Iterable[K]) -> None:
        """Wake some."""
        for key in keys:
            for waiter in self._listening.get(key, ()):
                waiter.wake()

    def wake_all(self) -> None:
        """Wake everybody."""
        self.wake(tuple(self._listening))
