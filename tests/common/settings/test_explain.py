"""Every setting explains itself."""

from __future__ import annotations

import tomllib
from typing import Annotated, ClassVar, get_args

import pytest
from pydantic.fields import FieldInfo

from fedrec.errors import SettingsError
from fedrec.plan.schema import section_types
from fedrec.section import Rule, Section, UsedIf, as_toml, at_least, at_most, only_if
from fedrec.settings.explain import (
    all_settings,
    explain,
    nearest_key,
    section_sentences,
    wrong_sentence,
)
from fedrec.settings.schema import CoordinatorSettings, PartiesSettings, Settings


def test_every_setting_has_a_sentence_and_words_for_its_values():
    for setting in all_settings().values():
        assert setting.sentence.endswith("."), setting.key
        assert not setting.allowed.startswith("<"), setting.key
        assert "Optional" not in setting.allowed, setting.key
        assert "^" not in setting.allowed.replace("2^", ""), setting.key
    assert set(section_sentences()) == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("rounds.total", "an integer from 1 to 1000000"),
        ("federation.seed", "an integer of at least 0, below 2^63"),
        ("update.clip", "a number above 0, at most 1000000"),
        ("protection.name", 'one of "none", "bfv", "ckks", "paillier", "masks"'),
        ("data.path", "text, or left out"),
        ("data.strict", "true or false"),
        ("client.label", "text of at most 64 characters"),
        ("federation.name", "1 to 64 letters, digits and . _ -"),
        ("client.device", '"auto", "cpu", "cuda" or "cuda:N", N a number'),
        ("coordinator.page", "host:port, such as 127.0.0.1:7448 or [::1]:7448, or empty"),
        ("parties.address", "host:port, such as fedrec.example:7447 or [::1]:7447"),
    ],
)
def test_ranges_are_told_in_words(key, allowed):
    (setting,) = explain(key)
    assert setting.allowed == allowed


@pytest.mark.parametrize("address", ["h:1", "[::1]:7447", "fedrec.example:65535"])
def test_addresses(address):
    assert PartiesSettings(address=address).address == address
    assert CoordinatorSettings(page="").page == ""
    assert CoordinatorSettings(page="[0::1]:0", host="[::1]").page == "[::1]:0"
    assert CoordinatorSettings(host="[::1]").host == "::1"


@pytest.mark.parametrize(
    "address", ["", "h", ":80", "h:", "h:0", "h:65536", "h:100000", "a b:1", "a_b:1", "[::]:1"]
)
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match="address"):
        PartiesSettings(address=address)


def test_conditions_are_about_settings_and_values_that_there_are():
    conditions = 0
    for section, _, model in section_types(Settings):
        for one in (item for field in model.model_fields.values() for item in field.metadata):
            if not isinstance(one, UsedIf):
                continue
            conditions += 1
            for name, values in one.values.items():
                assert name in model.model_fields, (section, name)
                assert all(value in _values(model.model_fields[name]) for value in values), name
            assert {*one.above_zero} <= {*model.model_fields}, (section, one)
    assert conditions > 20


def test_rules_are_about_settings_that_there_are_and_have_their_words():
    rules = 0
    for section, _, model in section_types(Settings):
        for rule in model.rules:
            rules += 1
            for name in rule.names:
                assert name.partition(".")[0] in model.model_fields, (section, name)
            assert rule.holds(model()), (section, rule)
            assert section in rule.sentence.format(path=section, s=model())
    assert rules > 10


class Ranked(Section):
    rules: ClassVar[tuple[Rule, ...]] = (
        at_most("rank", "dim", ": no", "or {path}.full = true"),
        at_least("asked", "fewest", ": too few", "or 0"),
        only_if(lambda section: section.dim > 1, ("turned", "dim"), "a number has no direction"),
    )

    full: bool = False
    rank: Annotated[int, UsedIf({"full": (False,)})] = 2
    dim: int = 4
    asked: int = 0
    fewest: int = 3
    turned: bool = False


class Around(Section):
    inner: Ranked = Ranked()


@pytest.mark.parametrize(
    ("values", "sentences"),
    [
        ({}, []),
        ({"rank": 4, "asked": 3, "turned": True}, []),
        (
            {"rank": 5},
            ["x.rank is 5, but x.dim is 4: no. Set x.rank = 4 or less, or x.full = true."],
        ),
        (
            {"asked": 2},
            ["x.asked is 2, but x.fewest is 3: too few. Set x.asked = 3 or more, or 0."],
        ),
        (
            {"dim": 1, "full": True, "turned": True},
            ["x.turned is set, but a number has no direction. Omit it."],
        ),
        ({"dim": 1, "full": True}, []),
    ],
)
def test_relations_are_told_where_they_are_broken(values, sentences):
    section = Ranked.model_validate(values)
    assert [sentence for _, sentence in section.problems("x")] == sentences
    inside = [keys for keys, _ in Around(inner=section).problems("y")]
    assert all(key.startswith("y.inner.") for keys in inside for key in keys)
    assert len(inside) == len(sentences)


def _values(field: FieldInfo) -> tuple[object, ...]:
    choices: tuple[object, ...] = get_args(field.annotation)
    return (True, False) if field.annotation is bool else choices


def test_where_a_setting_has_a_say_is_told_with_it():
    (info,) = (one for one in explain("algorithm.projector_rate") if one.owner == "plgc")
    assert info.sentence.endswith(
        'Only if regulariser is "err" and projector is true and weight is above 0.'
    )


def test_a_section_or_everything_can_be_explained():
    assert {setting.section for setting in explain("update")} == {"update"}
    assert {setting.key for setting in explain()} == set(all_settings())
    assert explain("rounds.total")[0].environment == "FEDREC_ROUNDS__TOTAL"


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(SettingsError) as caught:
        explain("rounds.totl")
    assert caught.value.remedy == "The nearest setting is rounds.total."
    assert nearest_key("xyzzy.plugh") == ""


@pytest.mark.parametrize("value", [1, 1.5, 1e-9, True, False, "", 'quo"ted\\\n', "üñ"])
def test_values_are_written_as_toml_reads_them(value):
    assert tomllib.loads(f"x = {as_toml(value)}")["x"] == value


def test_the_nearest_choice_is_named():
    assert 'The nearest is "fedals".' in wrong_sentence("algorithm.name", "fedasl")
    assert "in steps of 0.125" in wrong_sentence("algorithm.frequency_exponent", 0.3)
