"""Products in calls of one shape: the right numbers, whatever their memory looks like."""

from __future__ import annotations

import pytest
import torch
from conformance.shape_dependence import ShapeDependence

from fedrec.tensor_products import _at_once, batched_product, one_thread


def matrices(n: int, n_rows: int, n_columns: int, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn((n, n_rows, n_columns), generator=made)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 1023, 1024, 1025])
@pytest.mark.parametrize("turned", [False, True], ids=["in rows", "in columns"])
def test_it_is_the_product(n: int, turned: bool) -> None:
    left = matrices(n, 5, 7, 1).mT if turned else matrices(n, 7, 5, 1)
    right = matrices(n, 5, 3, 2)
    wanted = (left.double()[:, :, :, None] * right.double()[:, None]).sum(2)
    assert torch.allclose(batched_product(left, right).double(), wanted, atol=1e-5)
    shared = right[:1].expand(n, -1, -1)
    wanted = (left.double()[:, :, :, None] * shared.double()[:, None]).sum(2)
    assert torch.allclose(batched_product(left, shared).double(), wanted, atol=1e-5)


@pytest.mark.parametrize("size", [4, 64, 300])
def test_shapes_do_not_follow_from_how_many_there_are(size: int) -> None:
    left, right = matrices(40, size, size, 1), matrices(40, size, size, 2)
    with ShapeDependence() as library:
        whole = batched_product(left, right)
        for n in (1, 2, 39):
            assert torch.equal(batched_product(left[:n], right[:n]), whole[:n])
    assert library.seen


def test_a_call_has_work_for_a_moment_and_at_least_two() -> None:
    assert _at_once(1) == 1024
    assert _at_once(1 << 20) == 16
    assert _at_once((1 << 20) + 1) == 8
    assert _at_once(1 << 40) == 2


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
