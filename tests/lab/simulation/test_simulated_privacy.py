"""A simulation under privacy: what is added up, what is withheld, and when it ends."""

from __future__ import annotations

import numpy as np
import pytest
from lab.simulation.runs import run
from world.clock import FakeClock

from fedrec.plan.planned_noise import mechanism_of
from fedrec.privacy.mechanism import Mechanism
from fedrec.training.learner import Learner
from fedrec_lab.reports.ledger import ledger_of
from fedrec_lab.simulation.federation import SimulatedFederation
from fedrec_lab.simulation.parties import Arrangement

pytestmark = pytest.mark.slow

NOISY = {"mechanism": "gaussian", "rounds_per_user": 3, "expected_users": 20.0, "clip": 1.0}


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(Mechanism, "noise", lambda self, length: np.zeros(length, dtype=np.int64))


def settings_with(settings_of, privacy=(), **sections):
    return settings_of(protection={"name": "bfv"}, privacy=NOISY | dict(privacy), **sections)


def vectors_of(settings, data, n_clients):
    """Return what the parties' users contribute to the first training round, without noise."""
    users, catalogue = data
    federation = SimulatedFederation(
        settings, catalogue, users, Arrangement(n_clients=n_clients), clock=FakeClock()
    )
    federation.advance()
    return federation, [
        party.contribute("train", 2, federation._shared, None).vector
        for party in federation._parties
    ]


@pytest.mark.parametrize("name", ["fedmf", "pfedrec", "fedncf"])
def test_users_are_clipped_one_by_one(settings_of, data, no_noise, name):
    """Every user alone is within the bound, and the sum does not depend on who sits with whom."""
    settings = settings_with(
        settings_of, algorithm={"name": name, "dim": 8}, update={"structure": "dense"}
    )
    users, catalogue = data
    mechanism = mechanism_of(settings.plan)
    _, whole = vectors_of(settings, data, 1)
    _, parts = vectors_of(settings, data, 7)
    assert np.array_equal(whole[0], np.sum(parts, axis=0))
    learner = Learner(settings.plan, len(catalogue), device="cpu")
    shared = learner.server.apply(
        "count", 1, learner.server.initial_shared(), np.zeros_like(whole[0])
    )
    total = np.zeros_like(whole[0])
    shrunk = 0
    for place in range(len(users)):
        one = users.select(np.array([place]))
        vector = learner.contribute(
            "train", 2, shared, one, learner.local.initial_private(one)
        ).vector
        norm = sum(value * value for value in vector.tolist())
        assert norm <= mechanism.bound**2
        shrunk += norm > (mechanism.bound * 0.999) ** 2
        total += vector
    assert shrunk > len(users) / 2
    assert np.array_equal(total, whole[0])


def test_counts_and_metrics_are_in_no_sum(settings_of, data):
    settings = settings_with(settings_of)
    federation, (vector,) = vectors_of(settings, data, 1)
    layout = federation._learner.server.layout
    assert not vector[layout.count_slice].any() and not vector[layout.metrics_slice].any()
    # What was measured is known to this process alone.
    assert federation.advance().validation is not None


def test_noise_is_on_untouched_rows(settings_of, data):
    """Rows that one user does not touch have noise like any other, of the promised size."""
    settings = settings_with(settings_of, privacy={"rounds_per_user": 1})
    users, catalogue = data
    mechanism = mechanism_of(settings.plan)
    learner = Learner(settings.plan, len(catalogue), device="cpu")
    layout, one = learner.server.layout, users.select(np.array([0]))
    shared = learner.server.apply(
        "count", 1, learner.server.initial_shared(), np.zeros(layout.length, dtype=np.int64)
    )
    vector = learner.contribute("train", 2, shared, one, learner.local.initial_private(one)).vector
    untouched = vector[layout.change_slice] == 0
    noisy = layout.add_noise(vector, mechanism.noisy)[layout.change_slice]
    found = (noisy - vector[layout.change_slice])[untouched]
    assert (found != 0).all()
    assert found.std() == pytest.approx(mechanism.deviation, rel=5 / np.sqrt(2 * len(found)))
    assert np.array_equal(
        layout.add_noise(vector)[layout.change_slice.stop :], vector[layout.change_slice.stop :]
    )


@pytest.mark.parametrize("name", ["fedmf", "fedncf", "pfedrec"])
def test_every_algorithm_that_may_trains(settings_of, data, name):
    settings = settings_with(
        settings_of,
        algorithm={"name": name, "dim": 8, "learning_rate": 0.1},
        update={"structure": "dense" if name != "fedmf" else "colr", "rank": 4},
        rounds={"total": 2},
    )
    result = run(settings, data, n_clients=3, protect=True)
    assert result.finished
    values = result.last.shared.tensors.values()
    assert all(np.isfinite(table).all() for table in values)


def test_users_stop_at_their_cap(settings_of, data, no_noise):
    """Three rounds a user: the fourth sum is noise alone, which is switched off here."""
    settings = settings_with(settings_of, rounds={"total": 4})
    result = run(settings, data)
    trained = [report.participants for report in result.rounds if report.kind == "train"]
    assert trained == [60, 60, 60, 0]
    assert result.finished


def test_the_run_ends_before_the_budget_is_exceeded(settings_of, data):
    """z = 4 a round: by dp-accounting epsilon is 2.258 after five rounds, 2.502 after six."""
    privacy = {"noise_multiplier": 4.0, "epsilon": 2.4, "rounds_per_user": 0}
    settings = settings_with(settings_of, privacy=privacy, rounds={"total": 9})
    mechanism = mechanism_of(settings.plan)
    assert mechanism.most_sums == 5
    assert mechanism.epsilon_after(mechanism.most_sums) <= 2.4
    assert mechanism.epsilon_after(mechanism.most_sums + 1) > 2.4
    result = run(settings, data)
    assert result.budget_spent and not result.finished
    trained = sum(report.kind == "train" for report in result.rounds)
    assert trained == mechanism.most_sums
    ledger = ledger_of(settings.plan, result.rounds, simulated=True)
    assert ledger.differential_privacy
    assert ledger.guarantee is not None
    assert ledger.guarantee.epsilon == mechanism.epsilon_after(trained) <= 2.4
    assert ledger.guarantee.amplification == "none"


def test_a_resumed_simulation_remembers_who_took_part(settings_of, data, tmp_path):
    settings = settings_with(settings_of, rounds={"total": 5, "user_fraction": 0.5})
    asked, seen = [], []

    def stop() -> bool:
        asked.append(None)
        return len(asked) == 3

    for resume in (False, True):
        result = run(settings, data, folder=tmp_path, resume=resume, stop=stop)
        seen.append([r.participants for r in result.rounds if r.kind == "train"])
    whole = run(settings, data)
    assert seen[1] == [r.participants for r in whole.rounds if r.kind == "train"]
    assert seen[0] == seen[1][: len(seen[0])]


def test_two_runs_do_not_share_their_noise(settings_of, data):
    settings = settings_with(settings_of, rounds={"total": 1})
    first, second = (run(settings, data) for _ in range(2))
    assert first.last.shared.canonical_bytes() != second.last.shared.canonical_bytes()
