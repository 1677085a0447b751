"""Going on with a run where training rounds otherwise than before."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from world.plans import plan_of

from fedrec.arithmetic import Arithmetic
from fedrec.environment import ACCEPT_FLAG, Accepted, Provenance, provenance_of
from fedrec.errors import RefusedError

HERE = Arithmetic(
    device="cpu",
    machine="x86_64",
    processor="znver3",
    torch_capability="AVX2",
    torch_blas="not MKL",
    numpy_blas="scipy-openblas 0.3 Haswell",
    numba_cpu="znver3",
    c_library="glibc 2.36",
    libraries=(("numpy", "2.4.6"), ("torch", "2.13.0")),
)
ELSEWHERE = replace(HERE, processor="skylake", libraries=(("numpy", "2.4.6"), ("torch", "2.14.0")))
NOON = 1_700_049_600.0
"""2023-11-15 12:00:00 UTC: 19,676 days of 86,400 seconds after 1970, and half a day."""


def begun(path: str = "trainer 1", arithmetic: Arithmetic = HERE) -> Provenance:
    return Provenance(path=path, arithmetic=arithmetic)


def went_on(before: Provenance, present: Provenance, *, accepted: bool) -> Provenance:
    return before.continued(present, what="The run", round_id=7, now=NOON, accepted=accepted)


@pytest.mark.parametrize("accepted", [False, True])
def test_the_same_goes_on_and_nothing_is_written_down(accepted):
    assert went_on(begun(), begun(), accepted=accepted) == begun()


def test_another_is_refused_with_what_differs_and_the_flag():
    present = begun("trainer 2", ELSEWHERE)
    with pytest.raises(RefusedError) as caught:
        went_on(begun(), present, accepted=False)
    for part in (
        "The run was trained under other arithmetic",
        "The training path is trainer 2, not trainer 1.",
        "processor is skylake, not znver3",
        "torch is 2.14.0, not 2.13.0",
        "Nothing was changed",
    ):
        assert part in caught.value.message
    assert "numpy" not in caught.value.message
    assert ACCEPT_FLAG in caught.value.remedy
    assert "as good" in caught.value.remedy


@pytest.mark.parametrize(
    ("present", "named"),
    [
        (begun("fedmf accelerator 1"), "The training path is fedmf accelerator 1"),
        (begun(arithmetic=replace(HERE, device="cuda, NVIDIA X")), "device is cuda, NVIDIA X"),
        (begun(arithmetic=replace(HERE, torch_capability="AVX512")), "torch_capability is AVX512"),
        (begun(arithmetic=replace(HERE, settings=(("MKL_CBWR", "AVX"),))), "MKL_CBWR is AVX"),
    ],
    ids=["path", "device", "capability", "settings"],
)
def test_each_part_counts_alone(present, named):
    with pytest.raises(RefusedError, match=named):
        went_on(begun(), present, accepted=False)


def test_what_was_accepted_is_written_down_every_time():
    there = went_on(begun(), begun(arithmetic=ELSEWHERE), accepted=True)
    assert (there.path, there.arithmetic) == ("trainer 1", ELSEWHERE)
    assert there.accepted == (
        Accepted(
            at="2023-11-15T12:00:00+00:00",
            round=7,
            before=HERE.digest(),
            after=ELSEWHERE.digest(),
            difference="The arithmetic differs: processor is skylake, not znver3; "
            "torch is 2.14.0, not 2.13.0.",
        ),
    )
    # What was accepted once is the run's own from then on, and the way back is another change.
    assert went_on(there, begun(arithmetic=ELSEWHERE), accepted=False) == there
    with pytest.raises(RefusedError):
        went_on(there, begun(), accepted=False)
    back = went_on(there, begun(), accepted=True)
    assert [change.after for change in back.accepted] == [ELSEWHERE.digest(), HERE.digest()]


def test_it_is_read_as_it_was_written():
    there = went_on(begun(), begun(arithmetic=ELSEWHERE), accepted=True)
    record = json.loads(json.dumps(asdict(there)))
    assert Provenance.from_json(record) == there
    assert Provenance.from_json(record | {"cpu_count": 8}) == there
    for missing in record:
        with pytest.raises(KeyError):
            Provenance.from_json({name: record[name] for name in record if name != missing})


def test_a_plan_s_own_path_is_recorded():
    compiled = plan_of(algorithm={"name": "fedmf"})
    trained = plan_of(algorithm={"name": "fedmf"}, training={"accelerated": False})
    assert provenance_of(compiled, "cpu").path.startswith("fedmf accelerator ")
    assert provenance_of(trained, "cpu").path.startswith("trainer ")
    assert provenance_of(trained, "cpu").arithmetic == provenance_of(compiled, "cpu").arithmetic
