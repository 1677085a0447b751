"""The client's own ledger of what its users gave away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from client.support.fake_federation import World

from fedrec.errors import StorageError
from fedrec.ids import RoundId, UserId
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import Plan
from fedrec.privacy import Mechanism, Spent
from fedrec.wire.messages import UploadHeader
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore

USERS = tuple(map(UserId, ("ann", "bob", "cid")))


def mechanism(**privacy: float) -> Mechanism:
    found = mechanism_of(Plan.model_validate({"privacy": {"mechanism": "gaussian", **privacy}}))
    assert found is not None
    return found


def after(ledger: PrivacyLedger, by: Mechanism, run: str, *who: bool) -> PrivacyLedger:
    return ledger.charged(by.cost, run, USERS, np.array(who))


def test_a_user_stops_at_the_cap():
    by, ledger = mechanism(rounds_per_user=2), PrivacyLedger()
    ledger = after(ledger, by, "first", True, False, True)
    assert ledger.affordable(by, "first", USERS, None).tolist() == [True, True, True]
    ledger = after(ledger, by, "first", True, False, False)
    assert ledger.affordable(by, "first", USERS, None).tolist() == [False, True, True]
    asked = np.array([True, False, True])
    assert ledger.affordable(by, "first", USERS, asked).tolist() == [False, False, True]


def test_another_run_goes_on_counting():
    """The budget of two rounds was spent in the first run; the second one's cap is untouched."""
    by, ledger = mechanism(rounds_per_user=2), PrivacyLedger()
    for _ in range(2):
        ledger = after(ledger, by, "first", True, False, False)
    assert ledger.affordable(by, "second", USERS, None).tolist() == [False, True, True]
    twice = mechanism(rounds_per_user=2, epsilon=16.0, noise_multiplier=4.0)
    assert ledger.affordable(twice, "second", USERS, None).all()
    ledger = after(ledger, twice, "second", True, True, False)
    assert ledger.accounts[USERS[0]].spent == by.cost.times(2) + twice.cost
    assert ledger.accounts[USERS[0]].rounds == 1


def test_a_budget_below_the_cap_counts_as_well():
    """z = 4: by dp-accounting four rounds cost epsilon 1.993, five 2.258, whatever the cap says."""
    by = mechanism(rounds_per_user=9, noise_multiplier=4.0, epsilon=2.1)
    ledger = PrivacyLedger()
    for _ in range(4):
        assert ledger.affordable(by, "run", USERS, None)[0]
        ledger = after(ledger, by, "run", True, False, False)
    assert not ledger.affordable(by, "run", USERS, None)[0]


def test_it_survives_being_written():
    ledger = after(PrivacyLedger(), mechanism(), "run", True, True, False)
    assert PrivacyLedger.from_bytes(ledger.to_bytes()) == ledger
    with pytest.raises(StorageError, match="cannot be read"):
        PrivacyLedger.from_bytes(b'{"format": "another"}')


def test_costs_are_those_of_the_noise():
    """rho = 1 / (2 z^2) for z = 4, and no more: shares are rounded up."""
    cost = mechanism(noise_multiplier=4.0).cost
    assert cost.laplace == 0.0
    assert cost.gaussian == pytest.approx(1 / 32, rel=1e-5)
    assert cost.gaussian <= 1 / 32
    assert Spent() + cost == cost


def ledger_of(world: World) -> PrivacyLedger:
    return PrivacyLedger.of(PrivateStore(world.state, read_only=True))


def test_a_client_charges_its_users_and_leaves_them_out(tmp_path):
    privacy = {"mechanism": "gaussian", "rounds_per_user": 1, "expected_users": 3.0}
    world = World(tmp_path, privacy=privacy)
    world.whole_round(1, "count")
    world.whole_round(2)
    world.whole_round(3)
    by = mechanism_of(world.plan)
    assert by is not None
    assert world.app().run().version == 3
    ledger = ledger_of(world)
    assert ledger.run == world.run and len(ledger.accounts) == 3
    assert {(account.rounds, account.spent) for account in ledger.accounts.values()} == {
        (1, by.cost)
    }


def test_what_was_charged_stays_charged(tmp_path):
    """A round that is abandoned may have been seen: rolling it back gives nothing back."""
    world = World(tmp_path, privacy={"mechanism": "gaussian", "expected_users": 3.0})
    world.whole_round(1, "count")
    world.whole_round(2)
    world.app().run()
    before = ledger_of(world)
    with PrivateStore(world.state) as store:
        staged = after(before, mechanism(), world.run, True, True, True).to_bytes()
        store.stage(_next(world.rounds[2].headers[0]), b"update", b"private", spent=staged)
        store.roll_back()
        assert PrivacyLedger.of(store).to_bytes() == staged
    assert ledger_of(world).to_bytes() == staged


def _next(header: UploadHeader) -> UploadHeader:
    return replace(header, round=RoundId(header.round + 1))
