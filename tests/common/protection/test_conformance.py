"""Every protection of the registry keeps its seam's contract, under each of its presets."""

from __future__ import annotations

import pytest
from conformance.keyed_suite import EncryptedSuite, KeyedSuite
from conformance.protection_suite import SHORT, SHORTEST, SPEC, PlanSuite, ProtectionSuite
from conformance.round_suite import RoundSuite

from fedrec.errors import SettingsError
from fedrec.plan.protections import about_protection
from fedrec.protection import PROTECTIONS, NoProtection, Protection, SegmentSpec, VectorSpec
from fedrec.protection.protection import EncryptingProtection, OneStepProtection, in_one_step

MOST_BLOCKS = 30
"""Of a vector: where values are encrypted one by one, a short vector is as good as a long one."""


def suite_of(kind: type[Protection], preset: str) -> type[PlanSuite]:
    """Return the suite of one protection under one preset."""
    base: type[PlanSuite] = ProtectionSuite
    content: dict[str, object] = {"kind": kind, "preset": preset}
    if kind.steps.are_several:
        base = RoundSuite
    else:
        if kind.needs_reveal:
            base = EncryptedSuite if issubclass(kind, EncryptingProtection) else KeyedSuite
        fits = (s for s in (SPEC, SHORT) if kind.plan(s, preset=preset).n_blocks <= MOST_BLOCKS)
        content["spec"] = next(fits, SHORTEST)
    found = type(f"Test_{kind.name}_{preset}".replace("-", "_"), (base,), content)
    # The fast part takes the first preset, and no keys that take long to make.
    is_slow = preset != next(iter(kind.presets)) or kind.plan(SHORTEST, preset=preset).key_bits > 0
    return pytest.mark.slow(found) if is_slow else found


for _kind in PROTECTIONS.values():
    for _preset in _kind.presets:
        _suite = suite_of(_kind, _preset)
        globals()[_suite.__name__] = _suite


@pytest.mark.parametrize("name", PROTECTIONS)
def test_a_protection_goes_by_its_name_and_says_what_it_is(name):
    kind, about = PROTECTIONS[name], about_protection(name)
    assert kind.name == name and kind.presets and about.summary and about.statement
    assert kind.settings_type(name=name).name == name
    for key in about.own_settings:
        section, field = key.split(".")
        assert section in ("protection", "rounds") and field


@pytest.mark.parametrize("base", [OneStepProtection, EncryptingProtection])
def test_a_protection_with_keys_must_make_them(base):
    assert "generate" in base.__abstractmethods__


def test_a_protection_with_one_step_of_another_class_is_refused_as_that():
    class Older(Protection):
        name = "older"
        presets = ("default",)
        _plan = NoProtection._plan

        def generate(self):
            return super().generate()

    rows = VectorSpec(segments=(SegmentSpec(name="rows", length=4, max_abs_sum=8),), max_summands=4)
    with pytest.raises(SettingsError, match="older has one step") as caught:
        in_one_step(Older(rows, Older.plan(rows)))
    assert "OneStepProtection" in caught.value.remedy


MEANS = {
    "none": "1c9a6fdad1af7a7192839db96c73af369987410c74075be2c162234f5d5e264d",
    "bfv": "6050e4e032d9b23f3e81be549f511189c625b427d475e58d77464acb171c18f6",
    "ckks": "76654bf513f3e76f67cecb6cb896d985e63af97dfac64d3af71acbff44fdc146",
    "paillier": "5217635a4b967110283ba5ef0b4a63c0b6256dcd64acd81db76b39170fc5e64a",
    "masks": "f1fee8e7906dd3dda86a17cd316f5013f019eebaeaf3d7407f4d0079ef5daa4b",
}
"""Fingerprints as the first release computed them."""


@pytest.mark.parametrize("name", MEANS)
def test_keys_of_an_earlier_release_belong_to_the_same_plan(name):
    """Another fingerprint refuses every epoch that is installed: it needs a version of its own."""
    rows = SegmentSpec(name="rows", length=1000, max_abs_sum=1 << 20)
    spec = VectorSpec(segments=(rows,), max_summands=16)
    assert spec.fingerprint() == "fc45a55e98c291f225d8fe373ffe375ccf7a632b2052d8ee6b13d6527fc7a067"
    assert PROTECTIONS[name].plan(spec, preset="default").fingerprint() == MEANS[name]
