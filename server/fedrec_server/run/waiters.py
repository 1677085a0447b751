"""Long polls: futures that are woken only when there is news for them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["Waiters"]

K = TypeVar("K", bound=Hashable)


class Waiters(Generic[K]):
    """Wakes chosen keys, so that an upload does not wake ten thousand other clients."""

    def __init__(self) -> None:
        self._futures: dict[K, set[asyncio.Future[None]]] = {}

    async def wait(self, key: K, seconds: float) -> bool:
        """Wait until woken; False when the time is over."""
        future = asyncio.get_running_loop().create_future()
        mine = self._futures.setdefault(key, set())
        mine.add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            mine.discard(future)
            if not mine and self._futures.get(key) is mine:
                del self._futures[key]

    def wake(self, keys: Iterable[K]) -> None:
        """Wake some."""
        for key in keys:
            for future in self._futures.get(key, ()):
                if not future.done():
                    future.set_result(None)

    def wake_all(self) -> None:
        """Wake everybody."""
        self.wake(tuple(self._futures))
