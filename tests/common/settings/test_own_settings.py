"""A protection's own settings are read, explained and compared without a line elsewhere."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest
from pydantic import Field
from reference_tables import settings_markdown
from world.plans import plan_of

from fedrec.errors import SettingsError
from fedrec.plan import combinations
from fedrec.plan.agreement import plan_differences, plan_fingerprint, plan_from_json, plan_to_json
from fedrec.plan.protections import ABOUT, AboutProtection
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS, NoProtection, ProtectionSettings
from fedrec.settings import explain as explaining
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.validation import load_settings


class RelaySettings(ProtectionSettings):
    """Sums that a second party adds its half to."""

    relays: int = Field(default=2, ge=1, le=9, description="Parties that add up apart.")


class Relay(NoProtection):
    name: ClassVar[str] = "relay"
    settings_type: ClassVar[type[ProtectionSettings]] = RelaySettings


def forget() -> None:
    for cached in (explaining.all_settings, explaining._every_setting):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    forget()
    monkeypatch.setitem(PROTECTIONS, "relay", Relay)
    seen = AboutProtection(summary="shares that two parties add up")
    monkeypatch.setitem(ABOUT, "relay", seen)
    # The table of combinations was made before, of the protections that there were.
    monkeypatch.setattr(combinations, "_outside", lambda *_: ())
    yield
    forget()


def plan(**protection: object) -> Plan:
    return plan_of(protection=protection)


def test_they_are_read_from_text_of_any_origin():
    values = {"protection.name": "relay", "protection.relays": "3"}
    environment = {"FEDREC_PROTECTION__RELAYS": "4"}
    read = load_settings(values={**values}).protection
    assert isinstance(read, RelaySettings) and read.relays == 3
    del values["protection.relays"]
    assert load_settings(values=values, environ=environment).model_dump()["protection"] == {
        "name": "relay", "preset": "default", "key_holder": "authority", "corrupt_share": 0.1,
        "dropout_share": 0.1, "coordinator": "malicious", "relays": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "relay", "relays": 10}, "relays = 10: expected an integer from 1 to 9"),
        ({"name": "relay", "relay": 1}, "relay = 1: there is no such setting. The nearest is"),
        ({"name": "bfv", "relays": 3}, "bfv has no such setting, only relay. Omit it"),
        ({"name": "relai"}, 'expected one of "none", "bfv".*The nearest is "relay"'),
        ({"name": "relay", "corrupt_share": 0.2}, "relay does not use it, only masks"),
    ],
)
def test_what_is_wrong_is_named(values, sentence):
    with pytest.raises(SettingsError) as refused:
        load_settings(values={f"protection.{name}": value for name, value in values.items()})
    (problem,) = refused.value.problems
    assert re.search(sentence, problem)


def test_they_are_explained_and_in_the_reference():
    (found,) = explaining.explain("protection.relays")
    assert (found.owner, found.sentence) == ("relay", "Parties that add up apart.")
    assert "protection.relays" not in explaining.all_settings("fedmf", "bfv")
    page = settings_markdown()
    assert page.count("## `[protection]`") == page.count('### `name = "relay"`') == 1
    assert page.count("| `protection.corrupt_share` |") == 1
    assert '"masks", "relay"' in page and "relay: shares that two parties add up." in page


def test_they_travel_and_are_written_as_they_are():
    chosen = plan(name="relay", relays=5)
    assert plan_from_json(plan_to_json(chosen)) == chosen
    assert plan_fingerprint(chosen) != plan_fingerprint(plan(name="relay"))
    assert "relays = 5" in settings_to_toml(chosen)
    assert Plan(protection=ProtectionSettings(name="relay")) == plan(name="relay")


def test_other_protections_plans_have_nothing_of_them():
    assert b"relays" not in plan_to_json(Plan())


def test_a_client_compares_them_where_its_own_file_is_silent():
    (found,) = plan_differences(plan(name="relay"), plan(name="relay", relays=3))
    assert found.agreeing == "protection.relays = 3"
    assert not plan_differences(plan(name="none"), plan(name="relay", relays=3))
    assert [each.key for each in plan_differences(Plan(), plan(name="relay", relays=3))] == [
        "protection.name"
    ]
