"""Spectra of item tables: numbers by hand, and properties."""

import numpy as np
import pytest

from fedrec.algorithms import FedMFSettings, FedRecGELSettings, PLGCSettings
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec_lab.reports.table_diagnostics import (
    as_text,
    diagnose,
    information_abundance,
    principal_components,
    quality_of,
    singular_values,
)


def test_the_specifications_table():
    assert information_abundance(np.diag([3.0, 1.0])) == pytest.approx(4 / 3)
    assert singular_values(np.diag([1.0, 3.0])).tolist() == [3.0, 1.0]


def test_abundance_is_between_one_and_the_dimension():
    rng = np.random.default_rng(0)
    one_direction = np.outer(rng.normal(size=9), rng.normal(size=4))
    assert information_abundance(one_direction) == pytest.approx(1)
    orthonormal = np.linalg.qr(rng.normal(size=(9, 4)))[0]
    assert information_abundance(orthonormal) == pytest.approx(4)
    assert information_abundance(np.zeros((3, 2))) == 0
    table = rng.normal(size=(9, 4))
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    assert information_abundance(7 * table @ rotation) == pytest.approx(
        information_abundance(table)
    )


def test_components_by_hand():
    """Columns +-1 times 9, 3, 1 and 0, orthogonal and centred: variances 81, 9, 1 of 91."""
    signs = np.array([[1, 1, 1, -1, -1, -1, -1, 1], [1, -1, 1, 1, -1, 1, -1, -1]])
    third = signs[0] * signs[1]
    columns = np.stack([signs[0], signs[1], third - third.mean()], axis=1)
    assert np.allclose(columns.sum(0), 0)
    assert np.allclose(columns.T @ columns, 8 * np.eye(3))
    table = columns * [9.0, 3.0, 1.0] + [5.0, -2.0, 100.0]
    # 81/91 = .890, 90/91 = .98901.
    assert principal_components(table, 0.89) == 1
    assert principal_components(table, 0.95) == 2
    assert principal_components(table, 0.99) == 3
    assert principal_components(table, 1.0) == 3
    assert principal_components(np.ones((4, 2)), 0.95) == 0
    assert (quality_of(table).n95, quality_of(table).n99) == (2, 3)


def test_tables_of_a_model_shared_and_own():
    """Only active rows count; who has not begun is left out."""
    base = FedMFSettings(dim=2)
    algorithm = algorithm_of(Plan(algorithm=PLGCSettings(base=base)), 3)
    shared = {"item_embedding": np.array([[3.0, 0.0], [50.0, 50.0], [0.0, 1.0]])}
    own = np.zeros((3, 3, 2), dtype=np.float32)
    own[0, [0, 2]] = np.eye(2)
    own[2, [0, 2]] = [[2.0, 0.0], [0.0, 1.0]]
    found = diagnose(algorithm, shared, {"own_item_embedding": own}, np.array([0, 2]))
    first, second = found
    assert (first.table, first.n_users, first.n_items, first.dim) == ("item_embedding", 0, 2, 2)
    assert first.quality.abundance == pytest.approx(4 / 3)
    assert (second.table, second.n_users) == ("own_item_embedding", 2)
    assert second.quality.abundance == pytest.approx((2 + 1.5) / 2)
    assert "IA 1.3333" in as_text(found)


def test_what_an_optimiser_keeps_of_a_table_is_no_table():
    algorithm = algorithm_of(Plan(algorithm=FedRecGELSettings(dim=2, hidden_layers=1)), 3)
    shared = algorithm.derived.initial_shared().tensors
    assert shared["item_embedding_mean"].shape == shared["item_embedding"].shape
    found = diagnose(algorithm, shared, {}, np.arange(3))
    assert [each.table for each in found] == ["item_embedding"]
