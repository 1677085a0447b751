"""What a machine's bits follow from, and how two machines are told apart."""

import json
from dataclasses import replace

import llvmlite
import numpy as np
import pytest
import torch

from fedrec.arithmetic import Arithmetic, arithmetic_of

ONE = Arithmetic(
    device="cpu",
    machine="x86_64",
    processor="znver3",
    torch_capability="AVX2",
    torch_blas="MKL 1",
    numpy_blas="openblas 1 Zen",
    numba_cpu="znver3",
    c_library="glibc 2.36",
    libraries=(("numpy", "2.4.6"), ("torch", "2.13.0")),
)


def test_it_is_that_of_this_process(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    found = arithmetic_of("cpu")
    assert found.device == "cpu"
    assert found.torch_capability == torch.backends.cpu.get_cpu_capability()
    assert found.processor == llvmlite.binding.get_host_cpu_name()
    assert dict(found.libraries)["numpy"] == np.__version__
    assert dict(found.settings)["MKL_CBWR"] == "AVX2"
    assert "OPENBLAS_CORETYPE" not in dict(found.settings)


def test_it_is_told_apart_field_by_field():
    assert ONE.difference(ONE) == ""
    other = replace(
        ONE,
        torch_capability="AVX512",
        libraries=(("numba", "0.68.1"), ("numpy", "2.5.0"), ("torch", "2.13.0")),
    )
    assert ONE.difference(other) == (
        "The arithmetic differs: torch_capability is AVX512, not AVX2; "
        "numba is 0.68.1, not absent; numpy is 2.5.0, not 2.4.6."
    )
    assert replace(ONE, numba_cpu="").difference(ONE) == (
        "The arithmetic differs: numba_cpu is znver3, not unknown."
    )


def test_its_digest_tells_every_field():
    texts = [name for name in Arithmetic.__slots__ if isinstance(getattr(ONE, name), str)]
    others = [replace(ONE, **{name: "another"}) for name in texts]
    others += [replace(ONE, libraries=()), replace(ONE, settings=(("MKL_CBWR", "AVX2"),))]
    digests = {other.digest() for other in (ONE, *others)}
    assert len(digests) == 1 + len(Arithmetic.__slots__)
    assert all(len(digest) == 16 for digest in digests)


def test_what_was_written_down_is_read_back():
    kept = replace(ONE, settings=(("MKL_CBWR", "AVX2"),))
    assert Arithmetic.from_json(json.loads(kept.canonical())) == kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"processor": None}, "not text"),
        ({"colour": "red"}, "unexpected fields: colour"),
        ({"libraries": ["numpy"]}, "unpack"),
    ],
    ids=["type", "unknown", "pairs"],
)
def test_what_is_no_record_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Arithmetic.from_json(json.loads(ONE.canonical()) | change)
