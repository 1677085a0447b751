"""The sum of a round, kept equal to the list of counted updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedrec.ids import ClientId
from fedrec.protection import Accumulator
from fedrec.wire.messages import UploadHeader
from fedrec_server.uploads.round_collection import Collection

__all__ = ["RunningSum"]


class RunningSum(Collection):
    """An accumulator that remembers whose updates are in it and rebuilds itself from the spool.

    Adding is not idempotent, so that what is in the sum has to follow the store, never the
    other way round: after a crash, or where an update was added but could not be committed, the
    sum is made again from the stored files.

    Args:
        make: returns an empty accumulator of the round in progress.
        read: returns a counted update's bytes.
    """

    def __init__(
        self, make: Callable[[], Accumulator], read: Callable[[UploadHeader], bytes]
    ) -> None:
        self._make = make
        self._read = read
        self.forget()

    def forget(self) -> None:
        """Start anew with the next update."""
        self._folded: dict[ClientId, bytes] = {}
        # Made with the first update: before it nobody knows which round it will be of.
        self._accumulator: Accumulator | None = None

    def add(
        self, counted: Mapping[ClientId, UploadHeader], header: UploadHeader, payload: bytes
    ) -> None:
        """Add an update to the sum of those counted so far.

        Raises:
            MalformedUpdate: when it is malformed; the sum is as before.
            DamagedFile: when a counted update cannot be read any more.
        """
        self._follow(counted)
        self._made().add(payload)
        self._folded[header.client_id] = header.digest

    def finish(self, counted: Mapping[ClientId, UploadHeader]) -> bytes:
        """Return the sum of exactly the counted updates, and keep none of it.

        Raises:
            DamagedFile: when one of them cannot be read any more.
        """
        self._follow(counted)
        total = self._made().finish()
        # Asked for again it is made again; until the next round it would only take memory.
        self.forget()
        return total

    def _made(self) -> Accumulator:
        if self._accumulator is None:
            self._accumulator = self._make()
        return self._accumulator

    def _follow(self, counted: Mapping[ClientId, UploadHeader]) -> None:
        if self._folded == {client: header.digest for client, header in counted.items()}:
            return
        self.forget()
        for client_id, header in sorted(counted.items()):
            self._made().add(self._read(header))
            self._folded[client_id] = header.digest
