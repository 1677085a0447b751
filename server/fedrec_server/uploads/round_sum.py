"""The sum of a closed round, and how many users hold each item where the coordinator reads it."""

from __future__ import annotations

from collections.abc import Collection as Many

import numpy as np

from fedrec.errors import FedrecError, SumOutOfBounds
from fedrec.ids import ClientId, RoundId
from fedrec.protection import Accumulator
from fedrec.training.round_vectors import COUNTS
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec_server.federation import HolderCounts
from fedrec_server.rounds.state import Round
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import sum_name
from fedrec_server.uploads.round_collection import Collection


class ItemHolders:
    """Reads published count rounds, each once; to be used in the store's thread."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._seen = RoundId(0)
        self._found: HolderCounts | None = None

    def known(self) -> HolderCounts | None:
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
                self._found = HolderCounts(first=first, last=last)
            self._seen = record.round
        return self._found


def accumulator_of(run: LiveRun) -> Accumulator:
    """Return an empty sum of the round in progress."""
    round_ = run.state.current
    protection = run.protection_of("train" if round_ is None else round_.kind)
    return protection.accumulator(run.federation.keys.server_context)


class RoundSum:
    """Makes and reads sums; everything here runs in the store's thread.

    Args:
        collection: what was counted of the round in progress.
    """

    def __init__(self, run: LiveRun, collection: Collection) -> None:
        self._run = run
        self._collection = collection
        self._holders = ItemHolders(run)

    def make(self, round_: Round) -> tuple[Blob, bytes, StatedRows | None]:
        """Write the sum of a round's counted updates.

        Returns:
            Its file; where the coordinator can read it, its metrics, and the rows that travel after
            a count.

        Raises:
            SumOutOfBounds: no honest clients add up to it.
            FedrecError: the sum cannot be made.
        """
        run = self._run
        total = self._collection.finish(round_.accepted)
        metrics, rows = b"", None
        if not run.federation.protection.needs_reveal:
            metrics, rows = self._read(round_, total, round_.accepted.keys())
        if run.state.rules.shares_key:
            # A party that did not add the updates up cannot try which ones are in the sum.
            protection = run.protection_of(round_.kind)
            total = protection.refreshed(run.federation.keys.server_context, total)
        return run.store.spool.write(sum_name(round_.number), total), metrics, rows

    def unfit(self, round_: Round) -> list[tuple[ClientId, FedrecError]]:
        """Return whose updates hold by themselves what no honest client sends.

        Nobody's, where single updates cannot be read.
        """
        found: list[tuple[ClientId, FedrecError]] = []
        if self._run.federation.protection.hides_updates:
            return found
        for client_id, header in sorted(round_.accepted.items()):
            total = accumulator_of(self._run)
            total.add(self._run.read_update(header))
            try:
                self._read(round_, total.finish(), (client_id,))
            except SumOutOfBounds as error:
                found.append((client_id, error))
        return found

    def _read(
        self, round_: Round, total: bytes, clients: Many[ClientId]
    ) -> tuple[bytes, StatedRows | None]:
        """Return what a readable sum of these clients' updates says; see `Federation.read_sum`."""
        run = self._run
        return run.federation.read_sum(
            round_.kind,
            run.state.rows_of(round_.kind),
            total,
            clients,
            run.name,
            counted=self._holders.known(),
            trained=run.state.trained,
        )
