"""Lengths of rows: the values and gradients of the plain expressions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedrec.tensor_products import absolute_sums, square_sums

PLAIN: list[tuple[Callable[[torch.Tensor], torch.Tensor], Callable[..., torch.Tensor]]] = [
    (square_sums, lambda rows: rows.square().sum(-1)),
    (absolute_sums, lambda rows: rows.abs().sum(-1)),
]


@pytest.mark.parametrize(("of", "plain"), PLAIN, ids=["squares", "absolute"])
@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 1, 1), (1, 0, 3)])
def test_values_and_gradients_are_those_of_the_plain_expression(of, plain, shape):
    drawn = torch.Generator().manual_seed(3)
    rows = torch.randn(shape, generator=drawn, dtype=torch.float64)
    if rows.numel():
        rows[0, 0, 0] = 0.0
    outer = torch.randn(shape[:-1], generator=drawn, dtype=torch.float64)
    mine, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    (of(mine) * outer).sum().backward()
    (plain(theirs) * outer).sum().backward()
    assert torch.equal(of(rows), plain(rows))
    assert mine.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-15, atol=0)


def test_gradients_worked_by_hand():
    """d sum(x^2) = 2 x, d sum |x| = sign(x), 0 at 0."""
    rows = torch.tensor([[3.0, -2.0, 0.0]], requires_grad=True)
    assert square_sums(rows).tolist() == [13.0]
    assert absolute_sums(rows).tolist() == [5.0]
    (along,) = torch.autograd.grad(square_sums(rows).sum(), rows)
    assert along.tolist() == [[6.0, -4.0, 0.0]]
    (along,) = torch.autograd.grad(absolute_sums(rows).sum(), rows)
    assert along.tolist() == [[1.0, -1.0, 0.0]]
