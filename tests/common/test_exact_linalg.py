"""Products and eigenvectors in a fixed order, against LAPACK and by hand."""

import numpy as np
import pytest

from fedrec.exact_linalg import product, symmetric_eigen


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17, 64])
def test_eigenvectors_rebuild_the_matrix(size):
    random = np.random.default_rng(size)
    tall = random.normal(size=(3 * size, size))
    matrix = tall.T @ tall
    values, vectors = symmetric_eigen(matrix)
    scale = np.abs(matrix).max()
    assert np.sort(values) == pytest.approx(np.linalg.eigvalsh(matrix), abs=1e-12 * scale * size)
    assert vectors.T @ vectors == pytest.approx(np.eye(size), abs=1e-12)
    assert vectors @ np.diag(values) @ vectors.T == pytest.approx(matrix, abs=1e-12 * scale * size)


def test_a_matrix_whose_eigenvectors_are_known():
    values, vectors = symmetric_eigen(np.array([[2.0, 1.0], [1.0, 2.0]]))
    order = np.argsort(values)
    assert values[order] == pytest.approx([1.0, 3.0])
    assert np.abs(vectors[:, order]) == pytest.approx(np.full((2, 2), np.sqrt(0.5)))


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((3, 3)), np.eye(4), np.ones((5, 5)), np.diag([1e-30, 1.0, 1e30])],
    ids=["zero", "one", "rank one", "far apart"],
)
def test_degenerate_matrices(matrix):
    values, vectors = symmetric_eigen(matrix)
    expected = np.linalg.eigvalsh(matrix)
    assert np.sort(values) == pytest.approx(expected, abs=1e-12 * (1 + np.abs(expected).max()))
    assert vectors.T @ vectors == pytest.approx(np.eye(len(matrix)), abs=1e-12)


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        symmetric_eigen(np.array([[np.nan, 0.0], [0.0, 1.0]]))


def test_the_product():
    left, right = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    assert np.array_equal(product(left, right), left @ right)
    assert product(np.zeros((0, 3)), right).shape == (0, 4)
