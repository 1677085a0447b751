"""SVD and Top-K: worked matrices, agreement with plain numpy, users on their own."""

import numpy as np
import pytest
import torch
from reference.plain_updates import largest_values, nearest_of_rank

from fedrec.updates import SVD, TopK
from fedrec.updates.update import UpdateSettings


def svd(rank, dim):
    return SVD(UpdateSettings(structure="svd", rank=rank), dim)


def topk(ratio, dim):
    return TopK(UpdateSettings(structure="topk", ratio=ratio), dim)


def test_the_worked_matrices():
    change = np.array([[0.3, -0.5], [0.1, 0.0], [0.0, 0.4]])
    kept = topk(1 / 3, 2).compress(change, 3)
    assert kept.tolist() == [[0.0, -0.5], [0.0, 0.0], [0.0, 0.4]]
    nearest = svd(1, 2).compress(np.array([[3.0, 0.0], [0.0, 1.0]]), 2)
    assert nearest == pytest.approx(np.array([[3.0, 0.0], [0.0, 0.0]]), abs=1e-14)


@pytest.mark.parametrize(
    ("ratio", "n_values", "n_kept"),
    [
        (1 / 3, 6, 2),
        (5 / 6, 6, 5),
        (0.1, 30, 3),
        (1 / 64, 3706 * 64, 3706),
        (1e-9, 6, 1),
        (1, 6, 6),
    ],
)
def test_how_many_values_are_kept(ratio, n_values, n_kept):
    assert topk(ratio, 2).n_kept(n_values) == n_kept


@pytest.mark.parametrize("shape", [(40, 6), (3, 6), (200, 16)])
@pytest.mark.parametrize("rank", [1, 4])
def test_svd_agrees_with_lapack(shape, rank):
    change = np.random.default_rng(1).normal(size=shape)
    change[::3] = 0.0
    kept = svd(rank, shape[1]).compress(change, len(change))
    assert np.abs(kept - nearest_of_rank(change, rank)).max() < 1e-12
    assert not kept[::3].any()
    by_column = change.copy(order="F")
    assert np.array_equal(kept, svd(rank, shape[1]).compress(by_column, len(change)))


def test_svd_of_full_rank_loses_nothing_and_of_nothing_is_nothing():
    change = np.random.default_rng(2).normal(size=(50, 7))
    assert np.abs(svd(7, 7).compress(change, 50) - change).max() < 1e-13
    assert not svd(2, 7).compress(np.zeros((50, 7)), 50).any()


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.99])
def test_topk_agrees_with_a_sort_also_where_values_are_equal(ratio):
    # Whole numbers: many values have the same magnitude.
    change = np.random.default_rng(3).integers(-4, 5, size=(30, 5)).astype(np.float64)
    structure = topk(ratio, 5)
    kept = structure.compress(change, 30)
    assert np.array_equal(kept, largest_values(change, structure.n_kept(150)))


def test_topk_of_everything_is_everything():
    change = np.random.default_rng(4).normal(size=(30, 5))
    assert np.array_equal(topk(1.0, 5).compress(change, 30), change)


@pytest.mark.parametrize("structure", [svd(2, 5), topk(0.3, 5)], ids=["svd", "topk"])
def test_the_rows_of_active_items_say_what_the_whole_table_does(structure):
    """k and the singular vectors are those of the table, of which the other rows are zero."""
    table = np.random.default_rng(6).normal(size=(30, 5))
    active = np.arange(30) % 3 != 1
    table[~active] = 0.0
    whole = structure.compress(table, 30)
    assert np.abs(structure.compress(table[active], 30) - whole[active]).max() < 1e-14
    assert np.abs(whole[active] - table[active]).max() > 1e-3


def rows_of_users(n_users, n_rows, dim, *, whole):
    rng = np.random.default_rng(5)
    rows = rng.integers(-3, 4, size=(n_users, n_rows, dim)) if whole else None
    rows = rng.normal(size=(n_users, n_rows, dim)) if rows is None else rows
    rows = rows.astype(np.float32)
    for index in range(n_users):
        rows[index, n_rows - index :] = 0.0
    return rows


@pytest.mark.parametrize("dim", [5, 8])
@pytest.mark.parametrize("rank", [1, 3])
def test_svd_of_every_user_on_its_own(dim, rank):
    rows = rows_of_users(9, 21, dim, whole=False)
    kept = svd(rank, dim).compress_each(torch.from_numpy(rows), 100).numpy()
    for own, result in zip(rows, kept, strict=True):
        assert np.abs(result - nearest_of_rank(own.astype(float), rank)).max() < 1e-6
    assert not kept[3, 18:].any()


@pytest.mark.parametrize("ratio", [0.02, 0.05, 0.3])
def test_topk_of_every_user_on_its_own(ratio):
    rows = rows_of_users(9, 21, 5, whole=True)
    structure = topk(ratio, 5)
    kept = structure.compress_each(torch.from_numpy(rows), 100).numpy()
    for own, result in zip(rows, kept, strict=True):
        table = np.zeros((100, 5))
        table[:21] = own
        expected = largest_values(table, structure.n_kept(500))
        assert np.array_equal(result, expected[:21])


@pytest.mark.parametrize("structure", [svd(2, 6), topk(0.05, 6)], ids=["svd", "topk"])
def test_a_user_is_compressed_alike_in_any_company(structure):
    rows = torch.from_numpy(rows_of_users(13, 37, 6, whole=False))
    whole = structure.compress_each(rows, 50)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for start, end in ((0, 1), (4, 5), (3, 6), (1, 13)):
            assert torch.equal(structure.compress_each(rows[start:end], 50), whole[start:end])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("structure", [svd(2, 6), topk(0.05, 6)], ids=["svd", "topk"])
def test_what_is_not_finite_stays_so(structure):
    rows = torch.from_numpy(rows_of_users(4, 20, 6, whole=False))
    rows[2, 0, 0] = torch.nan
    rows[3, 0, 0] = torch.inf
    kept = structure.compress_each(rows, 50)
    assert torch.isfinite(kept[:2]).all()
    assert not torch.isfinite(kept[2]).all()
    assert not torch.isfinite(kept[3]).all()


@pytest.mark.parametrize("kind", [SVD, TopK])
def test_what_one_is_warned_of(kind):
    (size,) = kind.warnings(UpdateSettings(structure=kind.name))
    assert f'"{kind.name}" compresses what is learned, not what is sent' in size
    by_client = UpdateSettings(structure=kind.name, compress="client")
    assert kind.warnings(by_client)[0] == size
    assert "grouped into clients" in kind.warnings(by_client)[1]


@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.9])
def test_both_forms_of_topk_keep_the_same_values(ratio, monkeypatch):
    """With ties and zeros a processor and a device agree in bits; no number stays no number."""
    drawn = np.random.default_rng(4).integers(-3, 4, (5, 30, 4)).astype(np.float32)
    drawn[2, 7, 1] = np.nan
    rows = torch.from_numpy(drawn)
    structure = TopK(UpdateSettings(structure="topk", ratio=ratio), 4)
    in_numpy = structure.compress_each(rows, 30)
    monkeypatch.setattr(TopK, "in_numpy", False)
    in_tensors = structure.compress_each(rows, 30)
    others = [0, 1, 3, 4]
    assert torch.equal(in_numpy[others], in_tensors[others])
    assert torch.isnan(in_numpy[2, 7, 1]) and torch.isnan(in_tensors[2, 7, 1])
