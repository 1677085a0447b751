"""The probes: the same numbers again, and what they compute is right."""

import numpy as np
import pytest
import torch

from fedrec import probes
from fedrec.probes import Probe, fingerprint, look


@pytest.mark.slow
def test_looking_again_finds_the_same_on_any_number_of_threads():
    before = torch.get_num_threads()
    first = look()
    try:
        torch.set_num_threads(2)
        assert look() == first
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len({probe.name for probe in first}) == len(first)


def test_one_result_changes_the_fingerprint():
    one = (Probe(name="a", digest="1" * 16), Probe(name="b", digest="2" * 16))
    other = (one[0], Probe(name="b", digest="3" * 16))
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(tuple(one))


def test_products_are_those_of_float64():
    left, right = probes._table(1, 8, 32), probes._table(2, 32, 32)
    wanted = (left[:, :, None] * right[None]).sum(1)
    assert probes._torch_product(8) == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert probes._torch_product(1) == pytest.approx(wanted[:1], rel=1e-4, abs=1e-4)
    assert probes._numpy_product(np.float64)[:8] == pytest.approx(
        (probes._table(1, 32, 32)[:8, :, None] * right[None]).sum(1), rel=1e-12, abs=1e-12
    )


def test_the_compiled_loop_computes_its_sums():
    values = probes._values().numpy().astype(np.float64)
    total, loss = probes._compiled()
    assert total == pytest.approx((values * values[::-1]).sum(), abs=1e-2)
    assert loss == pytest.approx(np.log1p(np.exp(-np.abs(values))).sum(), rel=1e-4)
