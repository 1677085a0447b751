"""What goes together, and what is refused with the nearest that does."""

from __future__ import annotations

from typing import Any

import pytest
from world.plans import check_plan, plan_of

from fedrec.algorithms import FedMFSettings
from fedrec.plan.combinations import COMBINATIONS, Combination, find_conflicts
from fedrec.plan.layout import vector_spec
from fedrec.plan.schema import EvaluationSettings, Plan, RoundSettings
from fedrec.protection import PROTECTIONS, ProtectionSettings
from fedrec.updates.update import UpdateSettings


def test_the_default_plan_works():
    assert check_plan(Plan()) == []


def test_every_protection_stands_in_the_table():
    """Algorithms and structures: see their conformance tests."""
    assert {name for row in COMBINATIONS for name in row.protections} == set(PROTECTIONS)


@pytest.mark.parametrize("name", ["fedncf", "fedrecgel", "pfedrec"])
@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("protocol", ["full", "sampled", "paper"])
def test_a_network_goes_with_every_protection_and_protocol(name, protection, protocol):
    plan = plan_of(
        algorithm={"name": name}, update={"structure": "dense"},
        protection={"name": protection}, evaluation={"protocol": protocol},
    )  # fmt: skip
    assert check_plan(plan) == []


def test_a_combination_outside_the_table_is_refused_with_the_nearest():
    table = (
        Combination(
            algorithm="fedmf",
            updates=("dense",),
            protections=("none", "ckks"),
            protocols=("full",),
            reason="For the test.",
        ),
        Combination(
            algorithm="other",
            updates=("colr",),
            protections=("bfv",),
            protocols=("full",),
            reason="Another.",
        ),
    )
    (conflict,) = find_conflicts(Plan(), table)
    assert conflict.keys == ("update.structure", "protection.name")
    assert conflict.sentence == (
        "fedmf + colr + bfv + full is not a valid combination: For the test. The nearest valid "
        'one has update.structure = "dense" and protection.name = "none".'
    )


def plan(rounds: dict[str, Any] | None = None, **protection: str) -> Plan:
    chosen = {"name": "bfv", **protection}
    return plan_of(rounds=rounds or {}, protection=chosen)


OPENED = {"name": "ckks", "key_holder": "authority"}


@pytest.mark.parametrize(
    ("refused", "keys", "advice"),
    [
        (
            Plan(update=UpdateSettings(rank=33), algorithm=FedMFSettings(dim=32)),
            ("update.rank", "algorithm.dim"),
            "Lower update.rank to 32",
        ),
        (
            Plan(update=UpdateSettings(structure="scolr", rank=33)),
            ("update.rank", "algorithm.dim"),
            "Lower update.rank to 32",
        ),
        (
            Plan(update=UpdateSettings(structure="svd", rank=33)),
            ("update.rank", "algorithm.dim"),
            "Lower update.rank to 32",
        ),
        (Plan(update=UpdateSettings(structure="topk", rank=33)), None, ""),
        (
            Plan(protection=ProtectionSettings(name="bfv", preset="lean")),
            ("protection.preset", "protection.name"),
            'Set protection.preset = "default"',
        ),
        (
            plan({"minimum_summands": 2}),
            ("rounds.minimum_summands",),
            "Set rounds.minimum_summands = 3",
        ),
        (
            plan({"minimum_clients": 3, "minimum_summands": 5}),
            ("rounds.minimum_clients", "rounds.minimum_summands"),
            "Set rounds.minimum_clients = 5",
        ),
        (
            plan({"clients_per_round": 4, "minimum_clients": 5}, key_holder="members"),
            ("rounds.clients_per_round", "rounds.minimum_clients"),
            "Set rounds.clients_per_round = 5",
        ),
        (
            plan({"clients_per_round": 6}),
            ("rounds.clients_per_round", "protection.name"),
            "Set rounds.cells_per_round",
        ),
        (
            plan({"cells_per_round": 6}, key_holder="members"),
            ("rounds.cells_per_round", "protection.name"),
            "Set rounds.clients_per_round",
        ),
        (
            plan({"minimum_clients": 100}, **OPENED),
            ("rounds.recompute_limit", "rounds.minimum_clients"),
            "Set rounds.recompute_limit = 100",
        ),
        (plan({"cells_per_round": 1000, "minimum_clients": 100}), None, ""),
        (plan({"minimum_clients": 100}, name="none"), None, ""),
        (
            plan({"over_provision": 1.5}),
            ("rounds.over_provision", "rounds.cells_per_round"),
            "omit over_provision",
        ),
        (
            plan({"over_provision": 1.5}, name="none"),
            ("rounds.over_provision", "rounds.clients_per_round"),
            "omit over_provision",
        ),
        (
            Plan(evaluation=EvaluationSettings(protocol="sampled", at=100)),
            ("evaluation.at", "evaluation.protocol"),
            "Set evaluation.at = 99",
        ),
        (
            Plan(update=UpdateSettings(fraction_bits=40), rounds=RoundSettings()),
            None,
            "",
        ),
    ],
)
def test_numbers_that_contradict_each_other(refused, keys, advice):
    found = find_conflicts(refused)
    if keys is None:
        assert found == []
        return
    (conflict,) = found
    assert conflict.keys == keys
    assert advice in conflict.sentence


def test_what_the_planner_refuses_is_refused_before_the_start():
    settings = {
        "federation": {"maximum_users": 2**31 - 1},
        "update": {"fraction_bits": 40},
    }
    (sentence,) = check_plan(Plan.model_validate(settings))
    assert "federation.maximum_users" in sentence


@pytest.mark.parametrize("structure", ["colr", "scolr", "svd", "topk"])
def test_statistics_of_solved_users_have_no_other_structure(structure):
    choice = {"algorithm": {"name": "fedals"}, "update": {"structure": structure}}
    (sentence,) = check_plan(Plan.model_validate(choice))
    assert f"fedals + {structure} + bfv + full is not a valid combination" in sentence
    assert 'update.structure = "dense"' in sentence


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("ease", "exact counts, which are neither clipped nor rounded"),
        ("fedrecgel", "algorithm.item_clip"),
        ("sketch", "algorithm.longest_history"),
    ],
)
def test_a_range_without_a_say_is_refused_with_what_stands_in_for_it(name, instead):
    plan = {"algorithm": {"name": name}, "update": {"structure": "dense", "clip": 2.0}}
    conflicts = find_conflicts(Plan.model_validate(plan))
    (found,) = [each for each in conflicts if each.keys[0] == "update.clip"]
    assert f"has no effect on the sums of {name}" in found.sentence
    assert instead in found.sentence


def clear_indices(protection: str = "paillier", preset: str = "single-3072", **others: Any) -> Plan:
    return plan_of(
        update={"structure": "topk", "indices": "clear", **others.pop("update", {})},
        protection={"name": protection, "preset": preset},
        **others,
    )


@pytest.mark.parametrize("preset", ["single-3072", "single-2048", "paper"])
def test_indices_travel_in_the_clear_under_sets_of_one_value(preset):
    assert check_plan(clear_indices(preset=preset)) == []


@pytest.mark.parametrize(
    ("plan", "key", "reason"),
    [
        (clear_indices("bfv", "default"), "update.indices", "a slot cannot be moved"),
        (clear_indices("ckks", "default"), "update.indices", "a slot cannot be moved"),
        (clear_indices("masks", "default"), "update.indices", "at the same positions"),
        (clear_indices("none", "default"), "update.indices", "reads every value"),
        (clear_indices(preset="packed-3072"), "protection.preset", "a slot cannot be moved"),
        (clear_indices(preset="default"), "protection.preset", "a slot cannot be moved"),
        (clear_indices(update={"compress": "client"}), "update.compress", "a client is one user"),
        (
            clear_indices(update={"structure": "dense"}),
            "update.indices",
            'only if update.structure is "topk"',
        ),
    ],
    ids=["bfv", "ckks", "masks", "none", "packed", "default", "silos", "dense"],
)
def test_indices_in_the_clear_are_refused_elsewhere(plan, key, reason):
    (conflict,) = find_conflicts(plan)
    assert conflict.keys[0] == key
    assert reason in conflict.sentence
    assert "update.indices" in conflict.sentence


def test_noise_leaves_no_value_out_and_so_no_index():
    noisy = clear_indices(
        privacy={"mechanism": "gaussian", "expected_users": 1000},
        federation={"minimum_item_users": 1},
    )
    sentences = check_plan(noisy)
    assert any("noise to every value" in sentence for sentence in sentences)


def test_without_encryption_one_client_is_enough():
    assert check_plan(plan({"minimum_clients": 1, "minimum_summands": 1}, name="none")) == []


@pytest.mark.parametrize("name", sorted(PROTECTIONS))
def test_every_preset_can_be_chosen(name):
    for preset in (*PROTECTIONS[name].presets, "default"):
        choice = {"protection": {"name": name, "preset": preset}}
        assert check_plan(Plan.model_validate(choice)) == []


@pytest.mark.parametrize(
    ("structure", "field", "value", "having"),
    [
        ("dense", "compress", "client", '"svd" or "topk"'),
        ("colr", "ratio", 0.5, '"topk"'),
        ("svd", "normaliser", "entry", '"scolr"'),
        ("scolr", "compress", "client", '"svd" or "topk"'),
    ],
)
def test_settings_of_another_structure_are_refused(structure, field, value, having):
    plan = Plan(update=UpdateSettings.model_validate({"structure": structure, field: value}))
    (conflict,) = find_conflicts(plan)
    assert conflict.keys == (f"update.{field}", "update.structure")
    assert f"only if update.structure is {having}. Omit it" in conflict.sentence


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("protection", "corrupt_share", 0.2),
        ("protection", "dropout_share", 0.0),
        ("protection", "coordinator", "semi-honest"),
        ("rounds", "mask_step_seconds", 5.0),
    ],
)
def test_settings_of_masks_are_refused_without_them(section, field, value):
    (conflict,) = find_conflicts(Plan.model_validate({section: {field: value}}))
    assert conflict.keys == (f"{section}.{field}", "protection.name")
    masked = {"protection": {"name": "masks"}, "rounds": {}}
    masked[section] |= {field: value}
    assert find_conflicts(Plan.model_validate(masked)) == []


def test_masks_that_withstand_no_more_are_refused():
    """Of 3 clients a third is one, and then 2 shares are left of the 3 that are needed."""
    choice = {"protection": {"name": "masks", "dropout_share": 1 / 3}}
    (conflict,) = find_conflicts(Plan.model_validate(choice))
    assert conflict.keys[0] == "protection.dropout_share"
    assert "No graph on 3 clients" in conflict.sentence


def test_masks_are_held_to_every_size_of_a_round():
    """Of 5 clients, 1 of whom drops out, 4 reach the threshold of 4; of 20, 7 of whom drop out, 13
    do not reach 14.
    """
    settings = {"name": "masks", "corrupt_share": 0.1, "dropout_share": 0.35}
    small = {"protection": settings, "rounds": {"minimum_clients": 5, "cells_per_round": 1}}
    assert find_conflicts(Plan.model_validate(small)) == []
    large = {"protection": settings, "rounds": {"minimum_clients": 5, "cells_per_round": 8}}
    (conflict,) = find_conflicts(Plan.model_validate(large))
    assert "Rounds of 5 to 40 clients" in conflict.sentence


def held_by_the_authority(name: str, preset: str = "default", **rounds: Any) -> Plan:
    protection = {"name": name, "preset": preset, "key_holder": "authority"}
    return plan_of(protection=protection, rounds=rounds)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("bfv", "default"),
        ("bfv", "wide"),
        ("paillier", "default"),
        ("ckks", "lean"),
        ("ckks", "paper"),
    ],
)
def test_the_key_authority_may_open_exact_sums(name, preset):
    assert check_plan(held_by_the_authority(name, preset)) == []


@pytest.mark.parametrize("name", ["none", "masks"])
def test_without_a_key_there_is_nothing_for_an_authority_to_hold(name):
    """Whoever changes the protection need not change who opens sums."""
    plan = held_by_the_authority(name)
    assert find_conflicts(plan) == [] and not plan.authority_opens


def test_an_authority_opens_no_sums_without_tags_that_it_does_not_add_up():
    (conflict,) = find_conflicts(
        held_by_the_authority("ckks", "lean", minimum_clients=10, recompute_limit=9)
    )
    assert conflict.keys == ("rounds.recompute_limit", "rounds.minimum_clients")
    assert 'protection.name = "bfv", whose sums carry tags' in conflict.sentence


def test_sums_that_the_authority_opens_carry_tags():
    """A member without the key could hand in another's ciphertext, which only tags show."""
    for name in ("bfv", "paillier"):
        assert vector_spec(held_by_the_authority(name), 10).tagged
        assert not vector_spec(plan(name=name, key_holder="members"), 10).tagged


def test_a_key_that_encrypts_and_opens_is_kept_from_no_party(monkeypatch):
    without = PROTECTIONS | {"bfv": PROTECTIONS["none"]}
    monkeypatch.setattr("fedrec.plan.combinations.PROTECTIONS", without)
    (found,) = find_conflicts(Plan())
    assert found.keys == ("protection.key_holder", "protection.name")
    assert 'Set protection.key_holder = "members"' in found.sentence
    assert not find_conflicts(plan({}, key_holder="members"))
