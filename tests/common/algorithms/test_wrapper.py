"""Settings of an algorithm around another one: a table in a table."""

import tomllib

import pytest
from conformance.toys import registered
from pydantic import ValidationError

from fedrec.plan.agreement import plan_differences, plan_from_json, plan_to_json
from fedrec.plan.algorithm import accelerator_of, algorithm_of
from fedrec.plan.schema import Plan
from fedrec.section import as_toml

FILE = """
[federation]
seed = 11

[algorithm]
name = "wrapper-toy"

[algorithm.base]
name = "pfedrec"
dim = 7
batch_size = 40
negatives_per_positive = 3

[update]
structure = "dense"
"""


@pytest.fixture(autouse=True)
def _toys():
    with registered():
        yield


def plan_of(text=FILE):
    return Plan.model_validate(tomllib.loads(text))


def test_the_base_is_made_of_its_own_table():
    algorithm = algorithm_of(plan_of(), 30)
    assert type(algorithm.base).name == "pfedrec"
    assert algorithm.base.settings.dim == 7
    assert (algorithm.base.shapes.seed, algorithm.base.shapes.n_items) == (11, 30)
    assert (algorithm.settings.batch_size, algorithm.derived.negatives_per_positive) == (40, 3)
    names = {entry.name for entry in algorithm.parameters}
    assert names == {entry.name for entry in algorithm.base.parameters} | {"own_item"}


def test_noise_on_uploads_is_the_base_s():
    text = FILE.replace('"pfedrec"', '"pfedclr"') + "clip = 16.0\n"
    assert algorithm_of(plan_of(text), 30).upload_noise is None
    noisy = text.replace("dim = 7", "dim = 7\nnoise_scale = 0.5")
    assert algorithm_of(plan_of(noisy), 30).upload_noise.scale == 0.5


def test_a_plan_travels_with_it():
    plan = plan_of()
    again = plan_from_json(plan_to_json(plan))
    assert again == plan
    assert again.algorithm.base.dim == 7


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ('name = "pfedrex"', "There is no algorithm 'pfedrex'"),
        ("dim = 7", "There is no algorithm None"),
        ('name = "fedals"', "fedals has no loss"),
        ('name = "wrapper-toy"', "wrapper-toy has no loss"),
        ('name = "pfedrec"\ndims = 7', "dims"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_with_the_settings(base, words):
    before, _, after = FILE.partition('name = "pfedrec"')
    text = before + base + after[after.index("\n\n[update]") :]
    with pytest.raises(ValidationError, match=words):
        plan_of(text)


def test_a_client_agrees_to_the_whole_base():
    """Fewer negatives inside are less cover, so that they are no other user's to choose."""
    ours, theirs = plan_of(), plan_of(FILE.replace("positive = 3", "positive = 1"))
    (difference,) = plan_differences(ours, theirs)
    assert difference.key == "algorithm.base.negatives_per_positive"
    assert (difference.ours, difference.theirs) == (3, 1)
    assert not plan_differences(ours, plan_of())


def test_it_is_shown_as_toml():
    shown = as_toml(plan_of().algorithm.base)
    assert tomllib.loads(f"base = {shown}")["base"] == plan_of().algorithm.base.model_dump()


def test_nothing_compiled_stands_in_for_a_wrapper():
    assert accelerator_of(plan_of()) is None
