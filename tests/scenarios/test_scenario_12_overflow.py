"""Scenario 12, OVERFLOW: exact sums at every edge, and settings beyond it refused by their rule."""

import numpy as np
import pytest
from conformance.protection_suite import extreme, make_party
from pydantic import ValidationError
from world.bench import N_ITEMS
from world.plans import check_plan, plan_of

from fedrec.errors import MalformedUpdate, RoundError, SettingsError
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.schema import Plan
from fedrec.protection import BFV, CKKS, SegmentSpec, VectorSpec


def spec_of(largest, summands, length=2000):
    segment = SegmentSpec(name="all", length=length, max_abs_sum=largest)
    return VectorSpec(segments=(segment,), max_summands=summands)


def most_summands(kind, preset, largest):
    """Return how many messages can be summed without splitting values into limbs."""

    def fits(summands):
        try:
            return kind.plan(spec_of(largest, summands), preset=preset).limbs == (1,)
        except SettingsError:
            return False

    low, high = 1, 1 << 22
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@pytest.mark.parametrize("sign", [1, -1])
def test_scenario_12_as_many_extreme_ciphertexts_as_the_bound_allows(sign):
    most = most_summands(CKKS, "lean", 2**28)
    assert 500 < most < 1000, "the bound moved; choose another largest sum"
    spec = spec_of(2**28, most)
    party = make_party(CKKS, "lean", spec)
    vector = extreme(spec, sign, most)
    accumulator = party.protection.accumulator(party.context)
    for _ in range(most):
        accumulator.add(party.member.protect(vector))
    with pytest.raises(RoundError):
        accumulator.add(party.member.protect(vector))
    revealed = party.member.reveal(accumulator.finish(), most)
    assert np.array_equal(revealed, most * vector)


@pytest.mark.parametrize(("kind", "preset"), [(CKKS, "paper"), (BFV, "default")])
@pytest.mark.parametrize("sign", [1, -1])
def test_scenario_12_noise_that_all_points_one_way_is_inside_the_worst_case(kind, preset, sign):
    spec = spec_of(2**28, 1023)
    party = make_party(kind, preset, spec)
    assert party.protection.chosen.proof == "worst case"
    vector = extreme(spec, sign, 1023)
    message = party.member.protect(vector)
    accumulator = party.protection.accumulator(party.context)
    # One message again and again: its noise adds up without ever cancelling.
    for _ in range(1023):
        accumulator.add(message)
    assert np.array_equal(party.member.reveal(accumulator.finish(), 1023), 1023 * vector)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "preset", "slots"), [(CKKS, "lean", 2047), (BFV, "default", 4095)]
)
def test_scenario_12_a_million_random_sums_without_a_wrong_integer(kind, preset, slots):
    length = -(-1_000_000 // slots) * slots
    party = make_party(kind, preset, spec_of(2**27, 64, length))
    assert party.protection.chosen.limbs == (1,)
    random = np.random.default_rng(12)
    accumulator = party.protection.accumulator(party.context)
    expected = np.zeros(length, dtype=np.int64)
    for _ in range(4):
        vector = random.integers(-(2**25), 2**25, length, endpoint=True)
        expected += vector
        accumulator.add(party.member.protect(vector))
    wrong = party.member.reveal(accumulator.finish(), 4) != expected
    assert len(wrong) >= 1_000_000
    assert not wrong.any()


@pytest.mark.parametrize("name", ["bfv/default", "ckks/lean", "ckks/paper"])
@pytest.mark.parametrize("sign", [1, -1])
def test_scenario_12_every_user_of_every_client_at_the_clip(name, sign):
    protection, _, preset = name.partition("/")
    plan = plan_of(
        federation={"maximum_users": 64},
        update={"rank": 2},
        protection={"name": protection, "preset": preset, "key_holder": "members"},
        rounds={"recompute_limit": 8},
    )
    layout, planned = Layout.of(plan, N_ITEMS), protection_of(plan, N_ITEMS)
    context, secret = planned.generate()
    chosen = planned.over(layout.vector_spec)
    member = planned.member(context, secret).over(chosen)
    tensor = layout.tensors[0]
    # Eight clients of eight users, all of them at the edge of the public range.
    users = 8
    change = np.full(tensor.shape, sign * users << tensor.fraction_bits, dtype=np.int64)
    counts = np.full(N_ITEMS, users, dtype=np.int64)
    metrics = np.full(layout.length - layout.metrics_slice.start, users << 20, dtype=np.int64)
    vector = layout.pack({tensor.name: change}, counts, metrics)
    accumulator = chosen.accumulator(context)
    for _ in range(8):
        accumulator.add(member.protect(vector))
    revealed = member.reveal(accumulator.finish(), 8)
    assert np.array_equal(revealed, 8 * vector)
    assert revealed[layout.change_slice].tolist() == [sign * 64 << tensor.fraction_bits] * (
        layout.change_slice.stop
    )
    above = vector.copy()
    above[0] = sign * (64 << tensor.fraction_bits) + sign
    with pytest.raises(MalformedUpdate, match=tensor.name):
        member.protect(above)


OPENED = {"name": "ckks", "key_holder": "authority"}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (
            {"rounds": {"minimum_clients": 65}, "protection": OPENED},
            "rounds.recompute_limit",
        ),
        (
            {
                "federation": {"maximum_users": 2**23},
                "update": {"fraction_bits": 40},
                "protection": {"name": "ckks", "preset": "lean"},
            },
            "federation.maximum_users, update.fraction_bits and rounds.recompute_limit",
        ),
        ({"protection": {"name": "ckks", "preset": "approximate"}}, "protection.preset"),
    ],
)  # fmt: skip
def test_scenario_12_settings_beyond_the_edge_are_refused(settings, rule):
    problems = check_plan(plan_of(settings))
    assert any(rule in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("update", "clip", 0.0),
        ("update", "clip", -1.0),
        ("update", "fraction_bits", 41),
        ("federation", "maximum_users", 0),
        ("rounds", "recompute_limit", 10_001),
    ],
)
def test_scenario_12_values_without_meaning_are_refused_by_name(section, field, value):
    with pytest.raises(ValidationError, match=f"{section}.{field}"):
        Plan.model_validate({section: {field: value}})
