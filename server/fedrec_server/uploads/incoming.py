"""A byte string that a peer sends in chunks: received, hashed, synced, and only then counted."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fedrec.wire.chunks import CHUNK_BYTES, Assembler, Blob, Chunk
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import Draft, DurabilityLost

__all__ = ["Incoming"]

WAITING_BYTES = CHUNK_BYTES
"""What a stream brings while its earlier bytes are written; then it is not read further."""

T = TypeVar("T")


class Incoming(ABC):
    """A byte string that a peer sends in chunks into a draft."""

    def __init__(self, run: LiveRun, draft: Draft, blob: Blob) -> None:
        self._run = run
        self._draft = draft
        self._blob = blob
        self._busy: asyncio.Task[Any] | None = None
        self._waiting: list[Chunk] = []
        self._assembler = Assembler(
            blob.length,
            blob.digest,
            max_bytes=blob.length,
            start=draft.size,
            prefix=(draft.read(),) if draft.size else (),
            sink=draft.append,
        )

    async def take(
        self, chunks: AsyncIterator[Chunk], *, ahead: Callable[[], bool] = lambda: True
    ) -> None:
        """Take the rest of a stream: while some chunks are hashed and written, others arrive.

        Args:
            ahead: whether they may now; else the next one is awaited when these are written.
        """
        async for chunk in chunks:
            self._waiting.append(chunk)
            full = sum(len(chunk.data) for chunk in self._waiting) >= WAITING_BYTES
            if full or self._busy is None or self._busy.done():
                await self._written()
                if self._waiting:
                    self._busy = self._run.work.background(self._write())
            # Not to be held while the next one arrives.
            del chunk
            if not ahead():
                await self._written()
        await self._written()

    async def _write(self) -> None:
        """Hash and write what waits, and what comes meanwhile."""
        while self._waiting:
            chunks, self._waiting = self._waiting, []
            await self._run.work.beside(self._add_all, chunks)
            del chunks

    async def _written(self) -> None:
        """Wait for what is being written.

        Raises:
            FedrecError: when it does not fit.
        """
        if self._busy is not None:
            await asyncio.shield(self._busy)

    def _add_all(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._add(chunk.offset, chunk.data)

    def _add(self, offset: int, data: bytes | memoryview) -> None:
        if offset == 0 and self._draft.size:
            self._draft.restart()
            self._assembler = Assembler(
                self._blob.length,
                self._blob.digest,
                max_bytes=self._blob.length,
                sink=self._draft.append,
            )
        self._assembler.add(offset, data)

    async def finish(self) -> bool:
        """Check and count what arrived; True when it was counted before.

        Raises:
            CorruptUpload: when bytes are missing or are not the announced ones.
            FedrecError: when the round does not take it.
        """
        return await self._to_its_end(self._finish())

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Use the draft, to the end even where the peer hangs up in between."""
        self._busy = self._run.work.background(work)
        return await asyncio.shield(self._busy)

    async def _finish(self) -> bool:
        try:
            self._assembler.finish()
            duplicate = await self._count()
        except DurabilityLost:
            # Whether it is counted is not known: the next start finds out.
            raise
        except Exception:
            # Whole but refused is of no use; a torn upload may go on later.
            if self._assembler.complete:
                await self._refused()
            raise
        self._run.advance_soon()
        return duplicate

    async def _synced(self) -> None:
        """Make the draft durable; it takes longest, so uploads do it side by side."""
        await self._run.work.beside(self._draft.sync)

    async def leave(self) -> None:
        """Close the draft of a call that ended, in whatever way."""
        if self._busy is None or self._busy.done():
            self._draft.close()
        else:
            await self._run.work.uninterrupted(self._close_later())

    async def _close_later(self) -> None:
        # Closed while a thread still uses it, its number would name another file.
        if self._busy is not None:
            await asyncio.wait((self._busy,))
        self._draft.close()

    @abstractmethod
    async def _count(self) -> bool:
        """Make it durable and tell the state machine; True when it was counted before."""

    async def _refused(self) -> None:
        await self._run.work.beside(self._draft.discard)
