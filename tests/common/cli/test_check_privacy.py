"""What `fedrec check` says that noise costs and hides."""

import pytest
from command import sets
from world.plans import check_plan, plan_of

from fedrec.plan.privacy import few_clients_warnings, privacy_price, privacy_warnings
from fedrec.plan.schema import Plan

NOISY = {"mechanism": "gaussian", "noise_multiplier": 4.0, "rounds_per_user": 5, "clip": 0.5}


def test_privacy_is_priced(fedrec, settings_file):
    """z = 4 and five rounds: epsilon is 2.2581 by dp-accounting; the noise is four clips."""
    asked = (
        "privacy.mechanism=gaussian",
        "privacy.noise_multiplier=4",
        "privacy.epsilon=2.4",
        "privacy.rounds_per_user=0",
        "privacy.clip=0.5",
        "privacy.expected_users=10",
        "rounds.total=9",
        "algorithm.name=fedmf",
        "protection.name=bfv",
        "protection.key_holder=authority",
    )
    values = sets(*asked)
    outcome = fedrec("check", settings_file, "--json", *values)
    found = outcome.json["privacy"]
    assert found["opens_updates"] is False
    assert found["rounds_allowed"] == found["rounds_per_user"] == 5
    assert found["epsilon"] == pytest.approx(2.2581, rel=0.01)
    # Of three clients one is taken to collude; without it the noise is that of all three.
    assert found["epsilon_with_one_client"] == pytest.approx(2.2581, rel=0.01)
    assert found["epsilon_coordinator"] == pytest.approx(1.8005, rel=0.01)
    assert found["deviation"] == pytest.approx(2.0, rel=1e-4)
    assert found["deviation_of_mean"] == pytest.approx(0.2, rel=1e-4)
    assert any("The budget pays for 5 of 9 training rounds" in w for w in outcome.json["warnings"])
    seen = fedrec("check", settings_file, *values).out
    assert "How well sums hide a single user" in seen and "No amplification" in seen
    assert "against the coordinator" in seen and "and one client with it" in seen


@pytest.mark.parametrize(
    ("name", "key_holder", "opened"),
    [
        ("bfv", "authority", False),
        ("masks", "members", False),
        ("bfv", "members", True),
        ("ckks", "members", True),
        ("ckks", "authority", True),
    ],
)
def test_a_client_that_opens_single_updates_meets_one_share(name, key_holder, opened):
    """Two of three shares make z = 4, hence each is 4 / sqrt(2); all three make 4 sqrt(3 / 2).

    The epsilons of five sums are dp-accounting's (PLD, Gaussian events, delta 1e-5).
    """
    plan = Plan.model_validate(
        {
            "protection": {"name": name, "key_holder": key_holder},
            "privacy": NOISY,
            # A grid on which ckks takes noisy values whole.
            "update": {"fraction_bits": 10},
            "federation": {"maximum_users": 64},
        }
    )
    assert check_plan(plan) == []
    found = privacy_price(plan, 50)
    assert found is not None
    facts = found.facts
    assert facts["opens_updates"] is opened
    assert facts["epsilon"] == pytest.approx(2.2581, rel=0.01)
    assert facts["epsilon_coordinator"] == pytest.approx(1.8005, rel=0.01)
    assert facts["epsilon_with_one_client"] == pytest.approx(3.3414 if opened else 2.2581, rel=0.01)
    assert any("can open single updates" in text for text in privacy_warnings(plan, 0)) is opened
    rows = dict(found.rows)
    assert ("which they can open" in rows["and one client with it"]) is opened


@pytest.mark.parametrize("clients, word", [(1, "knows its own sum"), (2, "may collude"), (3, "")])
def test_too_few_clients_for_the_noise_are_warned_of(clients, word):
    plan = plan_of(privacy=NOISY)
    found = privacy_warnings(plan, 0, clients)
    assert any(word in text and "needs 3 clients" in text for text in found) is bool(word)
    assert few_clients_warnings(plan_of(), clients) == []


def test_whole_noise_of_each_client_needs_no_other():
    privacy = {"mechanism": "laplace", "rounds_per_user": 5}
    protection = {"name": "bfv", "key_holder": "members"}
    plan = plan_of(protection=protection, privacy=privacy)
    found = privacy_price(plan, 50)
    assert found is not None
    facts = found.facts
    assert facts["opens_updates"]
    assert facts["epsilon_coordinator"] == facts["epsilon_with_one_client"] == facts["epsilon"]
    assert not any("can open single updates" in text for text in privacy_warnings(plan, 0))


def test_no_privacy_is_said(fedrec, settings_file):
    outcome = fedrec("check", settings_file)
    assert "No differential privacy" in outcome.out
    assert fedrec("check", settings_file, "--json").json["privacy"] is None
