"""Blocking work in threads, and long polls that wake when there is news for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

import structlog

from fedrec.errors import FedrecError, StorageError
from fedrec_server.store.durable_files import DurabilityLost

K = TypeVar("K", bound=Hashable)


class Waiter:
    """A waiting call. It also notices news while it checks the state."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._woken.set()

    def forget(self) -> None:
        """Forget earlier news. The state that is checked next includes it."""
        self._woken.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait for news since the last `forget`. Return False if the time is over."""
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
        """Return the number of listening keys."""
        return len(self._listening)

    @contextmanager
    def listening(self, key: K) -> Iterator[Waiter]:
        """Receive all news in the block. In it: forget, check the state, wait, and repeat.

        A caller that checked the state before the block would miss news in between.
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
        """Wake some keys."""
        for key in keys:
            for waiter in self._listening.get(key, ()):
                waiter.wake()

    def wake_all(self) -> None:
        """Wake all keys."""
        self.wake(tuple(self._listening))


INCOMING_THREADS = 8
"""Number of threads. They mostly wait for the disk."""

P = ParamSpec("P")
T = TypeVar("T")


class Work:
    """One thread for the store and the sum, and a few for bytes that do not count yet.

    `lost` is set when the store's state is unknown, for the reason in `why_lost`. The process must
    then end. `on_refused` is called with every write that the disk refused.
    """

    def __init__(self) -> None:
        self.on_refused: Callable[[StorageError], None] = lambda error: None
        self.lost, self.why_lost = asyncio.Event(), ""
        self._store = ThreadPoolExecutor(1, thread_name_prefix="fedrec-store")
        self._incoming = ThreadPoolExecutor(INCOMING_THREADS, thread_name_prefix="fedrec-incoming")
        self._tasks: set[asyncio.Task[Any]] = set()

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in the store's thread, one call after another."""
        with self._noting():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._store, partial(work, *args, **kwargs))

    async def beside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work that touches neither database nor sum, such as hashing a chunk."""
        with self._noting():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._incoming, partial(work, *args, **kwargs))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Record that the store is lost, or that the disk refused a write."""
        try:
            yield
        except DurabilityLost as error:
            if not self.lost.is_set():
                structlog.get_logger().critical("durability lost", why=str(error))
                self.why_lost = str(error)
            self.lost.set()
            raise
        except StorageError as error:
            self.on_refused(error)
            raise

    async def uninterrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end, even if the caller hangs up in between."""
        return await asyncio.shield(self.background(work))

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work in the background."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def settled(self) -> None:
        """Wait for the work that calls left in the background."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def close(self) -> None:
        """End the threads."""
        self._incoming.shutdown()
        self._store.shutdown()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, FedrecError | DurabilityLost):
            structlog.get_logger().error("background work failed", exc_info=error)
