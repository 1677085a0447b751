"""Rounding to the grid and exact sums, by hand."""

import pytest
import torch

from fedrec.algorithms import UpdateTensor
from fedrec.algorithms.cohort import BlockChange
from fedrec.algorithms.grid import GridSum, RoundSums

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
def test_rows_are_rounded_clipped_counted_and_added(maximum_users):
    total = grid_sum(maximum_users)
    # In steps of a quarter: (1, 2.4), (-2, 0.4), (100, -17), (16, -16); half rounds to even.
    rows = torch.tensor([[0.25, 0.6], [-0.5, 0.1], [25.0, -4.25], [4.0, -4.0], [0.125, 0.375]])
    clipped = total.add(torch.tensor([0, 0, 2, 2, 3]), rows)
    assert clipped.tolist() == [0, 0, 2, 0, 0]
    assert total.change.tolist() == [[-1, 2], [0, 0], [32, -32]]
    assert total.change.dtype == torch.int64
    assert bool(total.finite)


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
def test_whole_contributions_go_to_one_row(maximum_users):
    total = grid_sum(maximum_users, n_items=1)
    clipped = total.add_whole(torch.tensor([[0.25, -9.0], [0.5, 0.25], [99.0, 99.0]]))
    assert clipped.tolist() == [1, 0, 2]
    assert total.change.tolist() == [[1 + 2 + 16, -16 + 1 + 16]]


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_told(maximum_users, bad):
    total = grid_sum(maximum_users)
    total.add(torch.tensor([1, 2]), torch.tensor([[bad, 0.25], [0.25, 0.5]]))
    assert not bool(total.finite)
    assert total.change[2].tolist() == [1, 2]


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
def test_sums_beyond_float32_are_exact(maximum_users):
    bound = 1 << 24
    total = grid_sum(maximum_users, n_items=1, bound=bound)
    ones = torch.full((5, 2), 0.25)
    total.add_whole(torch.full((3, 2), bound * 0.25))
    total.add_whole(ones)
    assert total.change.tolist() == [[3 * bound + 5] * 2]
    total.add_sums(torch.tensor([[7, -7]]), finite=True)
    assert total.change.tolist() == [[3 * bound + 12, 3 * bound - 2]]


def round_sums(longest: int | None, maximum_users: int = FEW) -> RoundSums:
    tensors = (
        UpdateTensor(name="rows", shape=(3, 1), limit=16.0, fraction_bits=6, per_item=True),
        UpdateTensor(
            name="weighed",
            shape=(3, 1),
            limit=1.0,
            fraction_bits=2,
            per_item=True,
            largest_weight=4096,
        ),
        UpdateTensor(name="whole", shape=(1,), limit=8.0, fraction_bits=5, largest_weight=4096),
        UpdateTensor(name="samples", shape=(1,), limit=4096.0, fraction_bits=12, signed=False),
    )
    grids = {
        tensor.name: GridSum(tensor, 3, maximum_users=maximum_users, device=CPU)
        for tensor in tensors
    }
    return RoundSums(grids, 3, device=CPU, longest=longest)


BLOCK = BlockChange(
    # Of user 0 rows 0 and 2, of user 1 row 2 and a place without an item.
    item=torch.tensor([[0, 2], [2, 3]]),
    rows={"rows": torch.tensor([[[0.75], [1.0]], [[10.0], [0.0]]])},
    whole={"whole": torch.tensor([[0.6], [-0.6]]), "samples": torch.tensor([[3.0], [4096.0]])},
    weight={"whole": torch.tensor([3, 4096])},
)
"""In steps of a quarter: rows 3 and 4, and 40; whole 2 (2.4 rounded) and -2."""


def test_a_users_rounded_values_count_as_often_as_its_weight():
    sums = round_sums(None)
    assert sums.add_block(BLOCK).tolist() == [0, 0]
    assert sums["rows"].change.tolist() == [[3], [0], [44]]
    assert sums["whole"].change.tolist() == [[2 * 3 - 2 * 4096]]
    assert sums["samples"].change.tolist() == [[4099]]
    assert sums.counts.tolist() == [1, 0, 2]
    assert sums.n_shrunk == 0 and sums.finite


def test_under_a_limit_of_length_every_user_counts_once():
    """User 0's (3, 4, 2) is within 6; user 1's (40, -2) becomes (5, -0) and counts no more."""
    sums = round_sums(6)
    sums.add_block(BLOCK)
    assert sums["rows"].change.tolist() == [[3], [0], [4 + 5]]
    assert sums["whole"].change.tolist() == [[2]]
    assert not sums["samples"].change.any()
    assert not sums.counts.any()
    assert sums.n_shrunk == 1


@pytest.mark.parametrize("maximum_users", [FEW, MANY])
def test_rows_count_as_often_as_their_users_weight(maximum_users):
    """In quarters: user 0's rows are 1 and -1 (-1.2 rounded), user 1's is 4 (9 clipped)."""
    sums = round_sums(None, maximum_users)
    values = torch.tensor([[[0.25], [-0.3]], [[2.25], [0.0]]])
    block = BlockChange(
        item=BLOCK.item, rows={"weighed": values}, whole={},
        weight={"weighed": torch.tensor([3, 4096])},
    )  # fmt: skip
    assert sums.add_block(block).tolist() == [0, 1]
    assert sums["weighed"].change.tolist() == [[3], [0], [-3 + 4 * 4096]]
    assert sums.counts.tolist() == [1, 0, 2]
