"""A sum that leaves the coordinator is refreshed where it can be, and stays the same sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from integration.conftest import Found
from integration.support.bench import N_ITEMS, plan_of
from integration.support.links import Passing

from fedrec.identity.authority_key import read_authority_key
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.ids import ClientId, RoundId
from fedrec.training.layout import Layout, protection_of
from fedrec.training.rows import ROW_STEP
from fedrec.wire.chunks import Blob
from fedrec.wire.link import Link
from fedrec.wire.messages import Reveal, RevealStatement, Task


class Curious(Passing):
    """Fetches the coordinator's sum twice before it reveals its own."""

    def __init__(self, link: Link, kept: list[tuple[Reveal, bytes]]) -> None:
        super().__init__(link)
        self._kept = kept
        self._tasks: dict[RoundId, Reveal] = {}

    def next_task(
        self, client_id: ClientId, run: str, version: RoundId, *, wait_seconds: float
    ) -> Task:
        found = super().next_task(client_id, run, version, wait_seconds=wait_seconds)
        if isinstance(found.task, Reveal):
            self._tasks[found.task.round] = found.task
        return found

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        task = self._tasks[statement.round]
        for _ in range(2):
            total = self.link.round_sum(  # type: ignore[attr-defined]  # of gRPC links only
                statement.client_id, statement.run, statement.round
            )
            self._kept.append((task, total))
        super().submit_reveal(statement, sealed)


def test_a_sum_that_is_handed_out_is_fresh_in_each_round(found: Found) -> None:
    federation = found(plan_of("paillier/packed-2048", total=1))
    kept: list[tuple[Reveal, bytes]] = []
    for client in federation.start_all(wrap=lambda link: Curious(link, kept)):
        assert client.result().reason == "all rounds are published"
    bench = federation.bench
    epoch = KeyEpoch.load(bench.workspace.epoch)
    identity = Identity.load(bench.state(0))
    settings = bench.client_settings(0, federation.address)
    _, secrets = open_epoch(
        roster_json=epoch.roster.to_json(),
        server_context=epoch.server_context,
        wrapped=epoch.secrets_for(identity.client_id),
        identity=identity,
        pinned_authority_key=read_authority_key(Path(settings.client.authority_key)),
    )
    planned = protection_of(bench.plan, N_ITEMS)
    whole = planned.member(epoch.server_context, secrets.protection_secret)
    metrics = federation.metrics()
    # Fresh, and one for all who ask in a round: key holders look at one sum of it only.
    assert len({total for _, total in kept}) == 3
    assert len(kept) >= 2 * 2 * 3
    for task, total in kept:
        assert len(total) == task.sum_length
        assert Blob.of(total).digest != task.sum_digest
        layout = Layout.of(bench.plan, ROW_STEP)
        if task.kind == "count":
            layout = Layout.counting(bench.plan, N_ITEMS)
        revealed = whole.over(planned.over(layout.vector_spec)).reveal(total, 3)
        published = revealed[layout.metrics_slice]
        assert np.array_equal(published, metrics[task.round])
