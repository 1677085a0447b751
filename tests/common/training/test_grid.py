"""Rounding to the grid and exact sums, by hand."""

import pytest
import torch

from fedrec.algorithms import UpdateTensor
from fedrec.training.grid import GridSum

CPU = torch.device("cpu")
FEW, MANY = 8, 1 << 50
"""With many users sums no longer fit 53 bits, and integers are added in place of floats."""


def grid_sum(maximum_users: int, n_items: int = 3, bound: int = 16) -> GridSum:
    tensor = UpdateTensor(
        name="rows", shape=(n_items, 2), limit=0.25 * bound, fraction_bits=bound.bit_length() - 1,
        per_item=True,
    )  # fmt: skip
    return GridSum(tensor, n_items, maximum_users=maximum_users, device=CPU)


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
def test_rows_are_rounded_clipped_counted_and_added(maximum_users: int) -> None:
    total = grid_sum(maximum_users)
    # In steps of a quarter: (1, 2.4), (-2, 0.4), (100, -17), (16, -16); half rounds to even.
    rows = torch.tensor([[0.25, 0.6], [-0.5, 0.1], [25.0, -4.25], [4.0, -4.0], [0.125, 0.375]])
    clipped = total.add(torch.tensor([0, 0, 2, 2, 3]), rows)
    assert clipped.tolist() == [0, 0, 2, 0, 0]
    assert total.change.tolist() == [[-1, 2], [0, 0], [32, -32]]
    assert total.change.dtype == torch.int64
    assert bool(total.finite)


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
def test_whole_contributions_go_to_one_row(maximum_users: int) -> None:
    total = grid_sum(maximum_users, n_items=1)
    clipped = total.add_whole(torch.tensor([[0.25, -9.0], [0.5, 0.25], [99.0, 99.0]]))
    assert clipped.tolist() == [1, 0, 2]
    assert total.change.tolist() == [[1 + 2 + 16, -16 + 1 + 16]]


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_told(maximum_users: int, bad: float) -> None:
    total = grid_sum(maximum_users)
    total.add(torch.tensor([1, 2]), torch.tensor([[bad, 0.25], [0.25, 0.5]]))
    assert not bool(total.finite)
    assert total.change[2].tolist() == [1, 2]


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
def test_sums_beyond_float32_are_exact(maximum_users: int) -> None:
    bound = 1 << 24
    total = grid_sum(maximum_users, n_items=1, bound=bound)
    ones = torch.full((5, 2), 0.25)
    total.add_whole(torch.full((3, 2), bound * 0.25))
    total.add_whole(ones)
    assert total.change.tolist() == [[3 * bound + 5] * 2]
    total.add_sums(torch.tensor([[7, -7]]), finite=True)
    assert total.change.tolist() == [[3 * bound + 12, 3 * bound - 2]]
