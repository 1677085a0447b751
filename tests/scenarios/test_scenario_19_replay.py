"""Scenario 19: a recorded update of one round is worth nothing anywhere else."""

import shutil
from dataclasses import replace

import pytest
from world.engine import Bench
from world.machine import terms_of
from world.serving import Serving, serving

from fedrec.errors import (
    BadSignature,
    CoordinatorWentBack,
    FedrecError,
    ProtocolError,
    RoundClosed,
)
from fedrec.ids import RoundId
from fedrec.wire.messages import UploadHeader

CLIENTS = range(3)
Recorded = tuple[Serving, UploadHeader, bytes]


@pytest.fixture
def second_round(tmp_path):
    """A coordinator that collects round 2, and what client 0 sent in round 1."""
    bench = Bench.of(3, total=3)
    with serving(bench, tmp_path) as found:
        found.come(CLIENTS)
        payload = bench.payload(0, 1)
        header = bench.header(
            0, 1, payload, found.run, **terms_of(found.coordinator.engine.run.state)
        )
        for number in CLIENTS:
            found.upload(number)
        found.do(found.coordinator.engine.run.work.settled())
        found.come(CLIENTS)
        assert found.coordinator.engine.run.state.current.number == 2
        yield found, header, payload


def test_scenario_19_in_the_next_round(second_round):
    found, header, payload = second_round
    with found.link() as link:
        assert link.submit_update(header, payload), "known, and not counted again"
        for changes, expected in (
            ({"round": RoundId(2)}, ProtocolError),
            (
                {"round": RoundId(2), **terms_of(found.coordinator.engine.run.state)},
                BadSignature,
            ),
            ({"run": "other"}, ProtocolError),
            ({"epoch": 2}, CoordinatorWentBack),
            ({"federation": "others"}, ProtocolError),
        ):
            with pytest.raises(FedrecError) as caught:
                link.submit_update(replace(header, **changes), payload)
            assert isinstance(caught.value, expected | BadSignature), changes
    round_ = found.coordinator.engine.run.state.current
    assert round_ is not None and not round_.accepted


def test_scenario_19_after_a_restart(second_round, tmp_path):
    """A coordinator started again on its folder, or on a copy of it, counts it no more than before.

    Of a copy from before the round members notice that it went back; see `test_rollback_detection`.
    """
    found, header, payload = second_round
    found.stop()
    shutil.copytree(tmp_path / "state", tmp_path / "copy" / "state")
    for folder in (tmp_path, tmp_path / "copy"):
        with serving(found.bench, folder) as again, again.link() as link:
            assert again.run == header.run
            again.come(CLIENTS)
            assert link.submit_update(header, payload), "known, and not counted again"
            with pytest.raises((BadSignature, ProtocolError)):
                link.submit_update(replace(header, round=RoundId(2)), payload)
            round_ = again.coordinator.engine.run.state.current
            assert round_ is not None and round_.number == 2 and not round_.accepted


def test_scenario_19_signed_anew_for_a_round_that_is_over(second_round):
    """Even its author cannot put another update into a published round."""
    found, _, _ = second_round
    other = found.bench.payload(0, 1, salt=3)
    header = found.bench.header(0, 1, other, found.run)
    with found.link() as link, pytest.raises(FedrecError) as caught:
        link.submit_update(header, other)
    assert caught.value.code in {"conflicting_upload", RoundClosed.code}
