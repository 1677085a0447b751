"""A ciphertext sum that leaves the coordinator is refreshed where it can be, and stays the same."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path

import numpy as np
from integration.support.bench import N_ITEMS, plan_of
from integration.support.links import Passing

from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_authority_key
from fedrec.ids import RoundId
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec.wire.link import Link
from fedrec.wire.messages import UploadHeader

Sent = dict[RoundId, list[bytes]]


class Overheard(Passing):
    """Keeps what a client sends."""

    def __init__(self, link: Link, sent: Sent, lock: threading.Lock) -> None:
        super().__init__(link)
        self._sent, self._lock = sent, lock

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        with self._lock:
            self._sent[header.round].append(payload)
        return super().submit_update(header, payload)


def test_a_published_ciphertext_sum_is_not_the_plain_product(found):
    """Else whoever has some of the updates could try which ones are in it."""
    federation = found(plan_of("paillier/packed-2048", total=1))
    sent: Sent = defaultdict(list)
    lock = threading.Lock()
    for client in federation.start_all(wrap=lambda link: Overheard(link, sent, lock)):
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
    rounds = federation.published()
    assert len(rounds) == 3
    for published in rounds:
        layout = Layout.of(bench.plan, ROW_STEP)
        if published.kind == "count":
            layout = Layout.counting(bench.plan, N_ITEMS)
        over = planned.over(layout.vector_spec)
        product = over.accumulator(epoch.server_context)
        for payload in sent[published.round]:
            product.add(payload)
        plain = product.finish()
        assert published.blob != plain and len(published.blob) == len(plain)
        revealed = whole.over(over).reveal(published.blob, 3)
        assert np.array_equal(revealed, whole.over(over).reveal(plain, 3))
        assert np.array_equal(revealed[layout.metrics_slice], metrics[published.round])
