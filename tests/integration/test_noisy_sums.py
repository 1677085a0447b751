"""A federation over gRPC with noisy sums: one model for everybody, and ledgers that agree."""

from __future__ import annotations

import signal

import pytest
from integration.support.bench import Bench, merged, plan_of
from integration.support.children import Child, ClientProcess, KillClient, close_all
from integration.support.links import poll
from integration.support.masked import N_CLIENTS, Gate, everybody, let_it_drop_out, without_cell_of

from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import Plan, PrivacySettings
from fedrec.privacy import BUDGET_SPENT
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore


def noisy(protection: str, **privacy: object) -> Plan:
    asked = PrivacySettings.model_validate({"expected_users": 20.0, **privacy})
    return plan_of(protection, 3, "fedmf").model_copy(update={"privacy": asked})


@pytest.mark.parametrize(
    ("protection", "mechanism"),
    [
        ("bfv", "gaussian"), ("paillier", "gaussian"), ("none", "laplace"),
        ("masks", "gaussian"), ("masks", "laplace"),
    ],
)  # fmt: skip
def test_one_noisy_model_for_everybody(found, protection, mechanism):
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
    for number in range(3):
        check_ledger(bench, number, plan.rounds.total)


@pytest.mark.parametrize("protection", ["bfv", "masks"])
def test_sketch_under_noise_has_two_sums_and_no_grades(found, protection):
    values = plan_of(protection, 3, "fedmf").model_dump()
    values["algorithm"] = {"name": "sketch", "dim": 4, "form": "plain", "regularisation": 1.0}
    values["update"] = {"structure": "dense"}
    values["privacy"] = {"mechanism": "gaussian", "expected_users": 20.0}
    values["rounds"]["total"] = 2
    plan = Plan.model_validate(values)
    federation = found(plan, 3)
    for number in range(3):
        federation.client(number)
    outcomes = [client.result() for client in federation.clients]
    assert {outcome.reason for outcome in outcomes} == {"all rounds are published"}
    bench = federation.bench
    assert len({bench.model(number) for number in range(3)}) == 1
    assert all(not any(values) for values in federation.metrics().values())
    for number in range(3):
        check_ledger(bench, number, 2)


def check_ledger(bench: Bench, number: int, n_rounds: int) -> None:
    """Check that a client charged each of its users so many rounds."""
    by = mechanism_of(bench.plan)
    assert by is not None
    ledger = PrivacyLedger.of(PrivateStore(bench.state(number), read_only=True))
    assert len(ledger.accounts) == len(bench.users()[number])
    assert {(account.rounds, account.spent) for account in ledger.accounts.values()} == {
        (n_rounds, by.cost.times(n_rounds))
    }


@pytest.mark.parametrize(("step", "charged"), [("shares", 1), ("vector", 2), ("signature", 3)])
def test_who_drops_out_under_masks_pays_for_a_vector_and_for_nothing_else(found, step, charged):
    """The rounds of the others go on, with the noise of six, where three are enough; who did not
    do what was asked is left out of the next one, too.
    """
    plan = noisy("masks", mechanism="gaussian").model_copy(
        update={"rounds": plan_of("masks", 3, mask_step_seconds=60.0).rounds}
    )
    gate = Gate(step, 3)
    federation = everybody(found, {4: gate}, 3, plan)
    try:
        let_it_drop_out(federation, gate, step)
        poll(lambda: federation.coordinator.engine.run.state.published >= 3)
    finally:
        gate.opened.set()
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    bench = federation.bench
    assert len({bench.model(number) for number in range(N_CLIENTS)}) == 1
    assert len(federation.published()[2].contributions) == (6 if step != "signature" else N_CLIENTS)
    others = without_cell_of(federation, 4)
    for number in range(N_CLIENTS):
        # Its cell's others uploaded, and are left out of the next round together with it.
        of_cell = plan.rounds.total - (step != "signature")
        total = plan.rounds.total if number in others else of_cell
        check_ledger(bench, number, charged if number == 4 else total)
    charges = [event.round for event in federation.journal() if event.fields.get("charged")]
    assert charges == [2, 3, 4]


def test_a_client_killed_under_masks_charges_every_round_once(found):
    plan = noisy("masks", mechanism="gaussian")
    federation = found(plan, 3)
    victim = 2
    for number in range(victim):
        federation.client(number)
    children: list[Child] = []
    try:
        for kill in (
            KillClient(place="after keys", round=2),
            KillClient(place="before the upload", round=2),
            KillClient(place="before shares", round=3),
            KillClient(place="after signature", round=3),
            KillClient(place="before answer", round=4),
        ):
            children.append(ClientProcess(federation.bench, victim, federation.address, kill))
            assert children[-1].ended(kill) == -signal.SIGKILL, kill
        children.append(ClientProcess(federation.bench, victim, federation.address))
        assert children[-1].told() == "all rounds are published"
    finally:
        close_all(children)
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    assert [event for event in federation.journal() if event.kind == "round abandoned"] == []
    for number in range(3):
        check_ledger(federation.bench, number, plan.rounds.total)


@pytest.mark.parametrize("protection", ["bfv", "masks"])
def test_the_budget_ends_the_run(found, protection):
    """One round costs epsilon 0.926 (dp-accounting, noise 4), two cost 1.356."""
    plan = noisy(
        protection, mechanism="gaussian", noise_multiplier=4.0, epsilon=1.0, rounds_per_user=0
    )
    assert plan.rounds.total > 1
    federation = found(plan, 3)
    for number in range(3):
        federation.client(number)
    outcomes = [client.result() for client in federation.clients]
    assert all(outcome.failed for outcome in outcomes)
    assert all(outcome.reason.startswith(BUDGET_SPENT) for outcome in outcomes)
