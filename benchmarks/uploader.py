"""A client of benchmarks that trains nothing and sends vectors that are ready."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from small_federation import training_vector

from fedrec.identity.certificates import CERTIFICATE_FILE
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_authority_key, read_issuer
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.schema import Plan
from fedrec.protection.protection import in_one_step
from fedrec.wire.chunks import Blob
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import PROTOCOL_VERSION, Train, UploadHeader


class Uploader:
    """Asks what to do, signs and sends.

    Args:
        address: the coordinator's.
        state: the client's folder.
        authority: the key authority's public key.
        number: seeds what it sends.
    """

    def __init__(self, address: str, plan: Plan, state: Path, authority: Path, number: int) -> None:
        self.identity = Identity.load(state)
        issuer = read_issuer(authority)
        certificate = (state / CERTIFICATE_FILE).read_bytes()
        self.own = self.identity.credentials(certificate, issuer)
        self.link = GrpcLink(address, self.own)
        self.info = self.link.federation(self.identity.client_id)
        _, secrets = open_epoch(
            roster_json=self.info.roster_json,
            server_context=self.info.server_context,
            wrapped=self.info.wrapped_secrets,
            identity=self.identity,
            pinned_authority_key=read_authority_key(authority),
        )
        self._plan = plan
        protection = in_one_step(protection_of(plan, self.info.n_items))
        member = protection.member(self.info.server_context, secrets.protection_secret)
        n_items = self.info.n_items
        counting, training = Layout.counting(plan, n_items), Layout.of(plan, n_items)
        counts = np.zeros(counting.length, dtype=np.int64)
        counts[counting.count_slice] = 1
        vectors = {
            "count": (counting, counts),
            "train": (training, training_vector(training, number)),
        }
        self._payloads = {
            kind: member.over(protection.over(layout.vector_spec)).protect(values)
            for kind, (layout, values) in vectors.items()
        }
        self.version = RoundId(0)
        self._header: UploadHeader | None = None
        self._payload = b""

    @property
    def update_bytes(self) -> int:
        """How long the update of a round of training is."""
        return len(self._payloads["train"])

    def prepare(self) -> None:
        """Wait for the next round and sign its header."""
        while True:
            task = self.link.next_task(
                self.identity.client_id, self.info.run, self.version, wait_seconds=20
            )
            self.version = task.published_round
            if isinstance(task.task, Train):
                break
        asked, info = task.task, self.info
        self._payload = self._payloads[asked.kind]
        blob = Blob.of(self._payload)
        header = UploadHeader(
            protocol_version=PROTOCOL_VERSION, federation=info.federation, run=info.run,
            round=asked.round, kind=asked.kind, base_round=asked.base_round,
            base_state=bytes(32), key_list=b"", nonce=b"", epoch=info.epoch,
            client_id=self.identity.client_id, catalogue_fingerprint=info.catalogue_fingerprint,
            plan_fingerprint=plan_fingerprint(self._plan), length=blob.length, digest=blob.digest,
            n_rows=info.n_items,
        )  # fmt: skip
        self._header = replace(header, signature=self.identity.sign(header.statement()))

    def send(self) -> None:
        """Upload what was prepared."""
        assert self._header is not None
        self.link.submit_update(self._header, self._payload)

    def wait_for_the_sum(self, before: RoundId) -> None:
        """Wait until a round after `before` is published."""
        while self.link.published(self.identity.client_id, self.info.run, before) is None:
            time.sleep(0.002)
