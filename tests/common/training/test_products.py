"""Products in calls of one shape: the right numbers, whatever their memory looks like."""

from __future__ import annotations

import pytest
import torch
from conformance.shape_dependence import ShapeDependence

from fedrec.tensor_products import _at_once, batched_product, one_thread, user_product


def matrices(n: int, n_rows: int, n_columns: int, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn((n, n_rows, n_columns), generator=made)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 1023, 1024, 1025])
@pytest.mark.parametrize("turned", [False, True], ids=["in rows", "in columns"])
def test_it_is_the_product(n, turned):
    left = matrices(n, 5, 7, 1).mT if turned else matrices(n, 7, 5, 1)
    right = matrices(n, 5, 3, 2)
    wanted = (left.double()[:, :, :, None] * right.double()[:, None]).sum(2)
    assert torch.allclose(batched_product(left, right).double(), wanted, atol=1e-5)
    shared = right[:1].expand(n, -1, -1)
    wanted = (left.double()[:, :, :, None] * shared.double()[:, None]).sum(2)
    assert torch.allclose(batched_product(left, shared).double(), wanted, atol=1e-5)


@pytest.mark.parametrize("size", [4, 64, 300])
def test_shapes_do_not_follow_from_how_many_there_are(size):
    left, right = matrices(40, size, size, 1), matrices(40, size, size, 2)
    with ShapeDependence() as library:
        whole = batched_product(left, right)
        for n in (1, 2, 39):
            assert torch.equal(batched_product(left[:n], right[:n]), whole[:n])
    assert library.seen


def test_a_call_has_work_for_a_moment_and_at_least_two():
    assert _at_once(1) == 1024
    assert _at_once(1 << 20) == 16
    assert _at_once((1 << 20) + 1) == 8
    assert _at_once(1 << 40) == 2


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("n_rows", [2, 5, 11, 24, 31])
@pytest.mark.parametrize("dim", [4, 5, 6, 32])
def test_a_users_product_and_its_gradient_do_not_depend_on_the_others(n_rows, dim):
    """On an AMD EPYC plain products of five columns differed by a user's place in the batch."""
    generator = torch.Generator().manual_seed(n_rows * dim)
    left, right = (torch.randn(37, n_rows, dim, generator=generator) for _ in range(2))
    square = torch.randn(37, dim, dim, generator=generator)

    def made(rows: torch.Tensor, shape: str) -> list[torch.Tensor]:
        one = left[rows].clone().requires_grad_()
        other = (square if shape == "layer" else right)[rows].clone().requires_grad_()
        pair = {"gram": (one.mT, other), "layer": (one, other), "pairs": (one, other.mT)}[shape]
        found = user_product(*pair)
        found.square().sum().backward()
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(found, pair[0] @ pair[1], atol=1e-4)
        return [found.detach(), one.grad, other.grad]

    for shape in ("gram", "layer", "pairs"):
        full = made(torch.arange(37), shape)
        for n_users in (37, 18, 8, 2, 1):
            rows = torch.randperm(37, generator=generator)[:n_users]
            for part, whole in zip(made(rows, shape), full, strict=True):
                assert torch.equal(part, whole[rows]), (shape, n_users)


def test_the_gradient_of_users_products_is_the_derivative():
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(3, 5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    right = torch.randn(3, 4, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(user_product, (left, right))
