"""How many users hold each item, where the coordinator can read it: what later sums are held to."""

from __future__ import annotations

import numpy as np

from fedrec.ids import RoundId
from fedrec.training.round_vectors import COUNTS
from fedrec.wire.stated_rows import StatedRows
from fedrec_server.federation import Counted
from fedrec_server.run.live_run import LiveRun

__all__ = ["ItemHolders"]


class ItemHolders:
    """Reads published count rounds, each once; to be used in the store's thread."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._seen = RoundId(0)
        self._found: Counted | None = None

    def known(self) -> Counted | None:
        """Return what the published count rounds say.

        Returns:
            None before it, or where nobody knows how vectors lie.

        Raises:
            DamagedFile: it cannot be read any more.
        """
        vectors = self._run.federation.vectors
        if vectors.layouts is None:
            return None
        while (record := self._run.store.next_published(self._seen)) is not None:
            if record.kind == "count":
                rows = StatedRows.whole(vectors.n_items)
                total = self._run.store.spool.read(record.name, record.blob)
                parts = self._run.federation.parts_of_sum(
                    "count", rows, total, len(record.contributions)
                )
                last = parts[COUNTS].astype(np.int64)
                first = last if self._found is None else self._found.first
                self._found = Counted(first=first, last=last)
            self._seen = record.round
        return self._found
