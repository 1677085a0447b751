"""Which values of a coordinator's plan a client takes."""

from __future__ import annotations

from typing import Any

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.errors import PlanMismatch, SettingsError
from fedrec.plan import agreement
from fedrec.plan.agreement import (
    FORMS,
    Difference,
    always_compared,
    check_continued,
    check_new_run,
    plan_differences,
    plan_fingerprint,
    plan_from_json,
    plan_of_run,
    plan_to_json,
)
from fedrec.plan.schema import PLAN_FORM, Plan
from fedrec.settings.explain import all_settings
from fedrec.settings.validation import load_settings


def plan(**values: Any) -> Plan:
    """Return a plan of dotted keys, written with two underscores."""
    nested: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition("__")
        nested.setdefault(section, {})[name] = value
    return Plan.model_validate(nested)


def keys(found: tuple[Difference, ...]) -> list[str]:
    return [difference.key for difference in found]


def test_what_is_always_compared():
    assert set(always_compared()) >= {
        "algorithm.name",
        "algorithm.negatives_per_positive",
        "update.normaliser",
        "update.indices",
        "federation.maximum_users",
        "federation.minimum_item_users",
        "protection.name",
        "protection.preset",
        "protection.key_holder",
        "evaluation.protocol",
        "rounds.minimum_clients",
        "rounds.minimum_summands",
        "rounds.user_fraction",
    }


def test_the_tables_name_fields_that_exist():
    known = {key for key, setting in all_settings().items() if setting.in_plan}
    assert known >= agreement._FREE
    assert known >= set(agreement._ORDERS)
    assert set(Plan.model_fields) >= agreement._FREE_SECTIONS


def test_a_new_field_is_compared():
    assert agreement._binds("privacy.noise_multiplier")


def test_equal_plans_agree():
    assert plan_differences(Plan(), Plan()) == ()
    given = plan(rounds__total=7, protection__name="none")
    assert plan_differences(given, given) == ()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"federation__name": "films", "federation__seed": 3}),
        ({}, {"algorithm__dim": 64, "update__clip": 9.0, "update__structure": "dense"}),
        ({}, {"rounds__total": 7, "rounds__clients_per_round": 9, "rounds__over_provision": 2.0}),
        ({}, {"evaluation__protocol": "sampled", "evaluation__every_rounds": 5}),
        ({}, {"federation__minimum_item_users": 11, "federation__maximum_users": 16_383}),
        ({}, {"rounds__minimum_clients": 4, "rounds__minimum_summands": 4}),
        ({"federation__minimum_item_users": 5}, {"federation__minimum_item_users": 10}),
        ({"federation__maximum_users": 512}, {"federation__maximum_users": 64}),
        ({"protection__name": "none"}, {"protection__name": "ckks", "protection__preset": "lean"}),
        ({"evaluation__protocol": "paper"}, {"evaluation__protocol": "full"}),
        ({}, {"algorithm__negatives_per_positive": 5}),
        ({"update__normaliser": "entry"}, {"update__normaliser": "item"}),
        ({"update__indices": "clear"}, {"update__indices": "hidden"}),
    ],
)
def test_what_is_taken(ours, theirs):
    assert plan_differences(plan(**ours), plan(**theirs)) == ()


@pytest.mark.parametrize(
    ("ours", "theirs", "refused"),
    [
        ({}, {"federation__minimum_item_users": 9}, ["federation.minimum_item_users"]),
        ({}, {"federation__maximum_users": 16_385}, ["federation.maximum_users"]),
        ({}, {"protection__name": "none"}, ["protection.name"]),
        ({}, {"protection__preset": "wide"}, ["protection.preset"]),
        (
            {},
            {"protection__name": "ckks", "protection__preset": "lean"},
            ["protection.name", "protection.preset"],
        ),
        ({}, {"evaluation__protocol": "paper"}, ["evaluation.protocol"]),
        ({}, {"rounds__minimum_clients": 2}, ["rounds.minimum_clients"]),
        ({}, {"rounds__minimum_summands": 2}, ["rounds.minimum_summands"]),
        ({}, {"rounds__user_fraction": 0.9}, ["rounds.user_fraction"]),
        ({"rounds__user_fraction": 0.5}, {}, ["rounds.user_fraction"]),
        ({"federation__minimum_item_users": 20}, {}, ["federation.minimum_item_users"]),
        ({}, {"algorithm__negatives_per_positive": 3}, ["algorithm.negatives_per_positive"]),
        ({}, {"update__normaliser": "entry"}, ["update.normaliser"]),
        ({}, {"update__indices": "clear"}, ["update.indices"]),
        # What is free is compared where it is given.
        ({"federation__name": "films"}, {}, ["federation.name"]),
        ({"algorithm__dim": 64, "rounds__total": 7}, {}, ["algorithm.dim", "rounds.total"]),
        # Given as the default is given, too.
        ({"rounds__total": 100}, {"rounds__total": 7}, ["rounds.total"]),
    ],
)
def test_what_is_refused(ours, theirs, refused):
    found = plan_differences(plan(**ours), plan(**theirs))
    assert keys(found) == refused
    agreed = {difference.key.replace(".", "__"): difference.theirs for difference in found}
    assert plan_differences(plan(**ours | agreed), plan(**theirs)) == (), "the remedy works"


@pytest.mark.parametrize("ours", sorted(ALGORITHMS))
@pytest.mark.parametrize("theirs", sorted(ALGORITHMS))
def test_another_algorithm_is_one_difference(ours, theirs):
    own = {"ease": {"algorithm__regularisation": 8.0}, "plgc": {"algorithm__weight": 8.0}}.get(
        ours, {"algorithm__dim": 8}
    )
    expected, found = plan(algorithm__name=ours, **own), plan(algorithm__name=theirs)
    different = ["algorithm.name"] if ours != theirs else [next(iter(own)).replace("__", ".")]
    assert keys(plan_differences(expected, found)) == different


def test_a_silent_client_joins_no_algorithm_that_it_did_not_name():
    (found,) = plan_differences(Plan(), plan(algorithm__name="fedals"))
    assert found.agreeing == 'algorithm.name = "fedals"'


def test_a_difference_names_field_and_both_values_and_the_line_to_write():
    (silent,) = plan_differences(Plan(), plan(rounds__minimum_clients=2))
    assert str(silent) == (
        "rounds.minimum_clients is 2 in the federation, but this client's settings say 3 or more "
        "(the default)"
    )
    assert silent.agreeing == "rounds.minimum_clients = 2"
    (given,) = plan_differences(plan(protection__name="bfv"), plan(protection__name="none"))
    assert str(given) == (
        'protection.name is "none" in the federation, but this client\'s settings say "bfv"'
    )
    assert given.agreeing == 'protection.name = "none"'


def test_a_coordinators_text_does_not_fill_the_terminal():
    (found,) = plan_differences(Plan(), plan(protection__preset="\x1b[2J\u202e" + "x" * 10_000))
    assert str(found).isprintable()
    assert len(str(found)) < 250 > len(found.agreeing)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(("ours", "theirs"), [("members", "authority"), ("authority", "members")])
def test_who_holds_the_key_is_never_changed_under_a_client(ours, theirs, given):
    """Neither is the stricter one: members trust each other in one, the authority in the other."""
    local = plan(protection__key_holder=ours) if given or ours == "members" else Plan()
    (found,) = plan_differences(local, plan(protection__key_holder=theirs))
    assert found.key == "protection.key_holder"
    assert found.agreeing == f'protection.key_holder = "{theirs}"'


@pytest.mark.parametrize("name", ["none", "masks"])
def test_the_holder_of_a_missing_key_does_not_matter(name):
    theirs = plan(protection__name=name, protection__key_holder="members")
    for holder in ("members", "authority"):
        ours = plan(protection__name=name, protection__key_holder=holder)
        assert plan_differences(ours, theirs) == ()
    assert plan_differences(plan(protection__name=name), theirs) == ()


def test_whoever_agreed_to_no_encryption_takes_any_key_holder():
    found = plan(protection__name="bfv", protection__key_holder="authority")
    assert plan_differences(plan(protection__name="none"), found) == ()


def former() -> Plan:
    """Return a plan as release 0.1 had it."""
    return plan(
        algorithm__name="fedals",
        algorithm__alpha=1.0,
        algorithm__regularisation=10.0,
        algorithm__frequency_exponent=0.5,
        update__structure="dense",
    ).in_form(1)


def test_a_run_of_release_0_1_has_the_fingerprint_that_release_0_1_gave_it():
    # Printed by `plan_fingerprint` at commit 19549b22.
    signed = "ff4139877db22a3e7a3c2553e154db912c608121ca283936d4ecd19b4b228d74"
    assert plan_fingerprint(former()) == signed
    assert plan_of_run(former().in_form(PLAN_FORM), signed) == former()


@pytest.mark.parametrize("form", FORMS)
def test_a_plan_is_read_in_the_form_in_which_it_was_written(form):
    written = plan_to_json(former().in_form(form))
    assert (b"corrupt_cells" in written) == (form > 1)
    found = plan_from_json(written)
    assert (found.form, plan_to_json(found)) == (form, written)


@pytest.mark.parametrize(
    ("raw", "place"), [(b"{", "the whole plan: "), (b'{"update": 1}', "read: update: ")]
)
def test_a_plan_of_another_version_is_refused_with_its_place(raw, place):
    with pytest.raises(PlanMismatch, match=place):
        plan_from_json(raw)


@pytest.mark.parametrize(("old", "new"), [("paper", "from_previous"), ("released", "from_first")])
def test_a_plan_with_a_settings_former_word_is_refused_with_the_new_word(old, new):
    written = plan_to_json(Plan.model_validate({"algorithm": {"name": "perfedrec"}}))
    raw = written.replace(b'"from_previous"', f'"{old}"'.encode())
    with pytest.raises(PlanMismatch, match=f"read: algorithm.convolution: '{old}' is now '{new}'"):
        plan_from_json(raw)
    values = {"algorithm.name": "perfedrec", "algorithm.convolution": old}
    with pytest.raises(SettingsError) as refused:
        load_settings(values=values)
    assert f"algorithm.convolution: '{old}' is now '{new}'." in refused.value.problems[0]


def test_a_run_that_no_form_explains_keeps_the_plan_of_the_settings():
    assert plan_of_run(Plan(), "ab" * 32) == Plan()
    assert plan_of_run(Plan(), plan_fingerprint(Plan())).form == PLAN_FORM


def test_a_former_run_opens_sums_by_its_own_rules():
    named = plan(protection__name="bfv")
    assert named.counts_by_cell
    assert not named.in_form(1).counts_by_cell


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (plan(algorithm__name="sketch"), "other fractions"),
        (plan(algorithm__name="ease", privacy__mechanism="gaussian"), "as one release"),
        (plan(algorithm__name="ease"), ""),
    ],
)
def test_a_run_whose_sums_mean_something_else_now_is_refused(found, why):
    check_continued(found)
    if not why:
        check_continued(found.in_form(1))
        return
    with pytest.raises(PlanMismatch, match=why):
        check_continued(found.in_form(1))


def test_a_coordinator_cannot_choose_the_rules_of_a_former_release():
    check_new_run(Plan())
    with pytest.raises(PlanMismatch, match=r"Release 0\.1 made"):
        check_new_run(former())
