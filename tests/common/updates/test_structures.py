"""What every update structure promises: B B^T = (d / r) I, and merging is Q + A B."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.config.schema import UpdateSettings
from fedrec.errors import SettingsError
from fedrec.updates import UPDATES


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_basis_and_merge(name):
    structure = UPDATES[name](UpdateSettings(structure=name, rank=3), 12)
    basis = structure.basis(5, 2)
    matrix = np.eye(12) if basis is None else basis
    assert matrix.shape == (structure.width, 12)
    assert np.allclose(matrix @ matrix.T, np.eye(structure.width) * 12 / structure.width)
    rng = np.random.default_rng(0)
    table, change = rng.normal(size=(20, 12)), rng.normal(size=(20, structure.width))
    before = table.copy()
    assert np.allclose(structure.merge(table, change, basis), table + change @ matrix)
    assert np.array_equal(table, before)


def test_colr_draws_anew_in_every_round_and_from_the_seed_alone():
    def make():
        return UPDATES["colr"](UpdateSettings(rank=2), 8)

    assert np.array_equal(make().basis(1, 1), make().basis(1, 1))
    assert not np.array_equal(make().basis(1, 1), make().basis(1, 2))
    assert not np.array_equal(make().basis(1, 1), make().basis(2, 1))


def test_a_rank_above_dim_is_refused_with_both_numbers():
    with pytest.raises(SettingsError, match=r"update\.rank is 9, but algorithm\.dim is 8"):
        UPDATES["colr"](UpdateSettings(rank=9), 8)
