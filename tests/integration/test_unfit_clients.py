"""Clients that do not fit are told why in a stable code, and cost the others nothing but time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3
from integration.support.bench import N_ITEMS, accepted, compute, federal, plan_of
from integration.support.links import Passing
from integration.support.parties import Client

from fedrec.data import Catalogue
from fedrec.errors import (
    BadSignature,
    CatalogueMismatch,
    FedrecError,
    MalformedUpdate,
    PlanMismatch,
    VersionMismatch,
)
from fedrec.identity.identity import Identity
from fedrec.ids import ClientId
from fedrec.plan.layout import Layout
from fedrec.protection import PROTECTIONS
from fedrec.wire.link import Link
from fedrec.wire.messages import FederationInfo, UploadHeader

MEMBERS = range(3)
UNFIT = 3
"""The roster's next client; three are enough for a round."""


class FromTheFuture(Passing):
    """Meets a coordinator of the next major version."""

    def federation(self, client_id: ClientId) -> FederationInfo:
        return replace(self.link.federation(client_id), protocol_version="1.0")


def test_refused_at_the_door(found, tmp_path):
    federation = found(plan_of("none", 3, total=1), 7)
    catalogue = Catalogue.of([f"i{number}" for number in range(N_ITEMS)])
    catalogue.save(tmp_path / "other.csv")
    unfit: list[tuple[Client, type[FedrecError]]] = [
        (federation.client(3, data__catalogue=str(tmp_path / "other.csv")), CatalogueMismatch),
        (federation.client(4, algorithm__learning_rate=0.25), PlanMismatch),
        (federation.client(6, wrap=FromTheFuture), VersionMismatch),
    ]
    members = [federation.client(number) for number in MEMBERS]
    for client, error in unfit:
        failure = client.failure()
        assert type(failure) is error, repr(failure)
        assert failure.exit_code == 5
        assert failure.remedy
    for member in members:
        assert member.result().reason == "all rounds are published"


class Forger(Passing):
    """Changes what a client signed, once the last round is collecting."""

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        if header.round == 3:
            header = replace(header, signature=bytes(64))
        return super().submit_update(header, payload)


class Foreigner(Passing):
    """Encrypts under keys of its own and other parameters; the length and signature are right."""

    def __init__(self, link: Link, *, identity: Identity) -> None:
        super().__init__(link)
        self._identity = identity

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        if header.round == 3:
            payload = foreign_payload(len(payload))
            changed = replace(header, digest=blake3(payload).digest(), signature=b"")
            signature = self._identity.sign(changed.statement())
            header = replace(changed, signature=signature)
        return super().submit_update(header, payload)


def foreign_payload(length: int) -> bytes:
    """Return an update of the paper's parameters, cut to the length that is expected."""
    kind = PROTECTIONS["ckks"]
    spec = Layout.of(plan_of("ckks"), N_ITEMS).vector_spec
    other = kind(spec, kind.plan(spec, preset="paper"))
    context, secret = other.generate()
    with secret:
        member = other.member(context, secret.export_for_wrapping())
    return member.protect(np.zeros(spec.length, dtype=np.int64))[:length]


@pytest.mark.parametrize(
    ("forge", "error"),
    [
        (lambda link, identity: Forger(link), BadSignature),
        (lambda link, identity: Foreigner(link, identity=identity), MalformedUpdate),
    ],
    ids=["forged signature", "foreign ciphertext"],
)
def test_refused_in_a_round(found, forge, error):
    federation = found(plan_of("bfv", 3, total=1), 4)
    bench = federation.bench
    identity = Identity.load(bench.state(UNFIT))
    unfit = federation.client(UNFIT, wrap=lambda link: forge(link, identity))
    federation.until_waiting(UNFIT)
    members = [federation.client(number) for number in MEMBERS]
    failure = unfit.failure()
    assert type(failure) is error, repr(failure)
    for member in members:
        member.wait_for("sent", 3)
    federation.clock.jump(bench.plan.rounds.deadline_seconds)
    for client in members:
        assert client.result().reason == "all rounds are published"
    rounds = accepted(bench, federation.published())
    assert rounds[-1].clients == set(MEMBERS)
    wanted = compute(bench.plan, bench.users(), rounds)
    assert {bench.model(number) for number in MEMBERS} == {wanted.model}
    assert federal(federation.metrics()) == federal(wanted.metrics)
