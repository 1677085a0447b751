"""What a coordinator takes of the key authority on sums, and of clients on what was published."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.support.federations import REVEALER, SEALED_BYTES, Bench, identity
from server.support.serving import Serving, serving

from fedrec.errors import (
    BadSignature,
    ConflictingUpload,
    KeysError,
    NotInRoster,
    ProtocolError,
    RefusedError,
    RoundError,
)
from fedrec.ids import RoundId
from fedrec.wire.messages import Reveal, Wait

CLIENTS = range(3)


def revealing(found: Serving) -> Reveal:
    """Bring a round to where the key authority opens it, and return its task."""
    found.come(CLIENTS)
    for number in CLIENTS:
        found.upload(number)
    found.do(found.coordinator.engine.run.work.settled())
    with found.link(REVEALER) as link:
        me = identity(REVEALER).client_id
        task = link.next_task(me, found.run, RoundId(0), wait_seconds=0.0).task
    assert isinstance(task, Reveal)
    return task


class TestRevealing:
    def test_nobody_else_fetches_contributions_or_speaks(self, tmp_path):
        bench = Bench.of(3, reveals=True)
        with serving(bench, tmp_path) as found:
            task = revealing(found)
            me, other = identity(0).client_id, identity(1).client_id
            with found.link(0) as link:
                assert isinstance(
                    link.next_task(me, found.run, RoundId(0), wait_seconds=0.0).task, Wait
                )
                with pytest.raises(RefusedError):
                    link.contribution(me, found.run, RoundId(1), other)
                with pytest.raises(RefusedError):
                    link.round_sum(me, found.run, RoundId(1))
                said = replace(bench.statement(task, found.run), client_id=me)
                signed = replace(said, signature=identity(0).sign(said.statement()))
                with pytest.raises(RefusedError):
                    link.submit_reveal(signed, b"sealed")

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"manifest_digest": bytes(32)}, ProtocolError),
            ({"metrics": bytes(8)}, ProtocolError),
            ({"published_digest": bytes(32)}, ProtocolError),
            ({"epoch": 2}, KeysError),
            ({"run": "other"}, ProtocolError),
        ],
    )
    def test_statements_are_checked(self, tmp_path, changes, expected):
        bench = Bench.of(3, reveals=True)
        sealed = b"honest" * SEALED_BYTES
        with serving(bench, tmp_path) as found, found.link(REVEALER) as link:
            task = revealing(found)
            with pytest.raises(expected) as caught:
                link.submit_reveal(bench.statement(task, found.run, **changes), sealed)
            assert type(caught.value) is expected
            unsigned = replace(bench.statement(task, found.run), signature=bytes(64))
            with pytest.raises(BadSignature):
                link.submit_reveal(unsigned, sealed)
            link.submit_reveal(bench.statement(task, found.run), sealed)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"metrics": b""}, ProtocolError),
            ({"round": RoundId(2)}, RoundError),
            ({"epoch": 2}, KeysError),
            ({"run": "other"}, ProtocolError),
            ({"client_id": identity(1).client_id}, BadSignature),
            ({"client_id": identity(8).client_id}, NotInRoster),
        ],
    )
    def test_reports_are_checked(self, tmp_path, changes, expected):
        bench = Bench.of(3, veiled=True)
        with serving(bench, tmp_path) as found:
            found.come(CLIENTS)
            for number in CLIENTS:
                found.upload(number)
            found.do(found.coordinator.engine.run.work.settled())
            named = changes.get("client_id")
            who = next((n for n in (1, 8) if identity(n).client_id == named), 0)
            with found.link(who) as link, pytest.raises(expected) as caught:
                link.submit_report(bench.report(0, 1, found.run, **changes))
            assert type(caught.value) is expected
            with found.link(0) as link:
                for _ in range(2):
                    link.submit_report(bench.report(0, 1, found.run))
                with pytest.raises(ConflictingUpload):
                    link.submit_report(bench.report(0, 1, found.run, "lie"))
            assert found.coordinator.engine.run.state.reporting is not None
            with found.link(1) as link:
                link.submit_report(bench.report(1, 1, found.run))
            assert found.coordinator.engine.run.state.reporting is None
            with found.link(2) as link:
                link.submit_report(bench.report(2, 1, found.run))
