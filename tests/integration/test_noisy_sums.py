"""A federation over gRPC with noisy sums: one model for everybody, and ledgers that agree."""

from __future__ import annotations

import pytest
from integration.conftest import Found
from integration.support.bench import merged, plan_of

from fedrec.config.schema import Plan, PrivacySettings
from fedrec.privacy import BUDGET_SPENT, mechanism_of
from fedrec_client.private_store import PrivateStore
from fedrec_client.spent import SpentLedger


def noisy(protection: str, **privacy: object) -> Plan:
    asked = PrivacySettings.model_validate({"expected_users": 20.0, **privacy})
    return plan_of(protection, 3, "fedmf").model_copy(update={"privacy": asked})


@pytest.mark.parametrize(
    ("protection", "mechanism"),
    [("bfv", "gaussian"), ("paillier", "gaussian"), ("none", "laplace")],
)
def test_one_noisy_model_for_everybody(found: Found, protection: str, mechanism: str) -> None:
    plan = noisy(protection, mechanism=mechanism)
    federation = found(plan, 3)
    for number in range(3):
        federation.client(number)
    outcomes = [client.result() for client in federation.clients]
    assert {outcome.reason for outcome in outcomes} == {"all rounds are published"}
    bench = federation.bench
    models = {bench.model(number) for number in range(3)}
    assert len(models) == 1
    assert models != {merged("fedmf").model}
    assert all(not any(values) for values in federation.metrics().values())
    by = mechanism_of(plan)
    assert by is not None
    for number in range(3):
        ledger = SpentLedger.of(PrivateStore(bench.state(number), read_only=True))
        assert len(ledger.accounts) == len(bench.users()[number])
        assert {account.spent for account in ledger.accounts.values()} == {
            by.cost.times(plan.rounds.total)
        }


def test_the_budget_ends_the_run(found: Found) -> None:
    """One round costs epsilon 0.926 (dp-accounting, noise 4), two cost 1.356."""
    plan = noisy("bfv", mechanism="gaussian", noise_multiplier=4.0, epsilon=1.0, rounds_per_user=0)
    assert plan.rounds.total > 1
    federation = found(plan, 3)
    for number in range(3):
        federation.client(number)
    outcomes = [client.result() for client in federation.clients]
    assert all(outcome.failed for outcome in outcomes)
    assert all(outcome.reason.startswith(BUDGET_SPENT) for outcome in outcomes)
