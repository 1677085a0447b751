"""Every protection of the registry keeps its seam's contract, under each of its presets."""

from __future__ import annotations

import pytest
from conformance.keyed_suite import EncryptedSuite, KeyedSuite
from conformance.protection_suite import SHORT, SHORTEST, SPEC, PlanSuite, ProtectionSuite
from conformance.round_suite import RoundSuite

from fedrec.protection import PROTECTIONS, Protection

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
            base = EncryptedSuite if kind.has_encryptor else KeyedSuite
        fits = (s for s in (SPEC, SHORT) if kind.plan(s, preset=preset).n_blocks <= MOST_BLOCKS)
        content["spec"] = next(fits, SHORTEST)
    found = type(f"Test_{kind.name}_{preset}".replace("-", "_"), (base,), content)
    is_slow = kind.plan(SHORTEST, preset=preset).key_bits > 0
    return pytest.mark.slow(found) if is_slow else found


for _kind in PROTECTIONS.values():
    for _preset in _kind.presets:
        _suite = suite_of(_kind, _preset)
        globals()[_suite.__name__] = _suite


@pytest.mark.parametrize("name", PROTECTIONS)
def test_a_protection_goes_by_its_name_and_says_what_it_is(name: str) -> None:
    kind = PROTECTIONS[name]
    assert kind.name == name and kind.summary and kind.statement()
    assert kind.presets and not set(kind.presets) & set(kind.retired)
    assert kind.settings_type(name=name).name == name
    for key in kind.own_settings:
        section, field = key.split(".")
        assert section in ("protection", "rounds") and field
