"""Without encryption ease shows the coordinator what users hold: each party is asked itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.support.bench import N_ITEMS, Bench, plan_of

from fedrec.errors import RefusedError
from fedrec.training.round_vectors import RoundVectors
from fedrec_server.app import Coordinator
from fedrec_server.federation import PublicCatalogue


def test_a_coordinator_is_asked(tmp_path):
    bench = Bench.make(tmp_path, plan_of("none", 3, "ease"))
    settings = bench.coordinator_settings()
    assert settings.data.catalogue is not None
    catalogue = PublicCatalogue.load(Path(settings.data.catalogue))
    spec = RoundVectors.of(bench.plan, N_ITEMS)
    with pytest.raises(RefusedError, match="the coordinator would read which pairs"):
        Coordinator.from_settings(settings, catalogue, spec)
    Coordinator.from_settings(settings, catalogue, spec, accept_exposure=True)


def test_a_client_is_asked_whatever_the_coordinator_accepted(found):
    federation = found(plan_of("none", 3, "ease"), 3)
    failure = federation.client(0, accept_exposure=False).failure()
    assert type(failure) is RefusedError
    assert failure.exit_code == 5
    assert "--accept-exposure" in failure.remedy
