"""Rows that travel over a real coordinator: their number, their length, and none at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from integration.support.bench import N_ITEMS, merged, plan_of
from integration.support.links import Passing, poll

from fedrec.errors import MalformedUpdate, ProtocolError
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.identity import Identity
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.schema import Plan
from fedrec.wire.chunks import Blob
from fedrec.wire.link import Link
from fedrec.wire.messages import UploadHeader


def with_least(plan: Plan, least: int) -> Plan:
    federation = plan.federation.model_copy(update={"minimum_item_users": least})
    return plan.model_copy(update={"federation": federation})


@pytest.mark.parametrize("protection", ["none", "bfv", "masks"])
def test_updates_have_two_lengths_which_the_journal_explains(found, protection):
    federation = found(plan_of(protection))
    for client in federation.start_all():
        assert client.result().reason == "all rounds are published"
    plan = federation.bench.plan
    planned = protection_of(plan, N_ITEMS)
    counting = planned.over(Layout.counting(plan, N_ITEMS).vector_spec).chosen.message_bytes
    training = planned.over(Layout.of(plan, 256).vector_spec).chosen.message_bytes
    for published in federation.published():
        wanted = counting if published.kind == "count" else training
        rows = N_ITEMS if published.kind == "count" else 256
        assert {header.length for header in published.contributions} == {wanted}
        assert {header.n_rows for header in published.contributions} == {rows}
    for event in federation.journal():
        if "rows" in event.fields:
            assert event.fields["rows"] == 256
    models = {federation.bench.model(number) for number in range(3)}
    assert models == {merged().model}


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_a_run_in_which_no_item_has_enough_holders_names_the_setting(found, protection):
    federation = found(with_least(plan_of(protection), 1000))
    for client in federation.start_all():
        outcome = client.result()
        assert outcome.failed
        assert "federation.minimum_item_users = 1000" in outcome.reason
        assert outcome.version == 1


class OfOtherRows(Passing):
    """Says that its updates after the count cover other rows, or sends other ones' length."""

    def __init__(self, link: Link, identity: Identity, changes: dict[str, object]) -> None:
        super().__init__(link)
        self._identity = identity
        self._changes = changes

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        if header.kind == "train":
            payload = payload if self._changes else payload[:-8]
            blob = Blob.of(payload)
            header = replace(header, length=blob.length, digest=blob.digest)
            header = replace(header, **self._changes)  # type: ignore[arg-type]
            header = replace(header, signature=self._identity.sign(header.statement()))
        return super().submit_update(header, payload)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"n_rows": 512}, ProtocolError),
        ({"rows_digest": b"x" * 32}, ProtocolError),
        ({}, MalformedUpdate),
    ],
    ids=["another number", "another list", "another length"],
)
@pytest.mark.parametrize("protection", ["none", "masks"])
def test_a_coordinator_refuses_updates_over_other_rows(found, protection, changes, error):
    """It is refused before a byte of it is kept; under bfv by key holders, too."""
    federation = found(plan_of(protection, 3, total=1), 3)
    identity = Identity.load(federation.bench.state(2))
    unfit = federation.client(2, wrap=lambda link: OfOtherRows(link, identity, changes))
    for number in range(2):
        federation.client(number)
    if protection == "none":
        assert isinstance(unfit.failure(), error)
    else:
        # Under masks what others were told may be at fault: the client notes it and goes on.
        refused = federation.bench.state(2) / AUDIT_FILE
        # Not when the file is there: its first line is written a moment after it is made.
        assert poll(lambda: refused.exists() and "\n" in refused.read_text())
        assert error.code in refused.read_text()
