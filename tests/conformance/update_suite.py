"""What every update structure must do; `UpdateSuite` runs over the registry.

A new line in `UPDATES` is tested without another line here. A structure that needs other settings
than `SETTINGS` names them in `OWN_SETTINGS`; one that is registered elsewhere subclasses the suite
with a fixture `name` of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from world.plans import plan_of

from fedrec.errors import SettingsError
from fedrec.plan.layout import Layout
from fedrec.updates import UPDATES
from fedrec.updates.update import UpdateSettings

N_ITEMS = 20
SETTINGS: dict[str, Any] = {"rank": 3}
OWN_SETTINGS: dict[str, dict[str, Any]] = {}
"""By a structure's name: settings in which it differs from `SETTINGS`."""

Table = NDArray[np.float64]


def settings_of(name: str, **changes: Any) -> UpdateSettings:
    """Return the suite's settings for a structure."""
    own = SETTINGS | OWN_SETTINGS.get(name, {}) | {"structure": name} | changes
    return UpdateSettings.model_validate(own)


def merged_plainly(table: Table, change: Table, basis: Table | None) -> Table:
    """Return table + change B, value by value in the order of the basis's rows."""
    result = table.copy()
    for item in range(len(table)):
        for column in range(table.shape[1]):
            if basis is None:
                result[item, column] += change[item, column]
                continue
            for row in range(len(basis)):
                result[item, column] += change[item, row] * basis[row, column]
    return result


class UpdateSuite:
    """The conformance suite of the seam of update structures."""

    @pytest.fixture(scope="class", params=sorted(UPDATES))
    @classmethod
    def name(cls, request):
        """The structure under test."""
        return str(request.param)

    @pytest.fixture(scope="class", params=[3, 8, 12])
    @classmethod
    def structure(cls, name, request):
        return UPDATES[name](settings_of(name), request.param)

    @pytest.fixture(scope="class")
    @classmethod
    def tables(cls, structure):
        """A table, a change and the basis of a round."""
        rng = np.random.default_rng(0)
        table = rng.normal(size=(N_ITEMS, structure.dim))
        change = rng.normal(size=(N_ITEMS, structure.width))
        return table, change, structure.basis(5, 2)

    def test_it_is_registered_under_its_own_name(self, name):
        assert UPDATES[name].name == name

    def test_the_width_is_what_travels(self, name, structure):
        assert 1 <= structure.width <= structure.dim
        settings = settings_of(name)
        plan = plan_of(algorithm={"dim": structure.dim}, update=settings.model_dump())
        layout = Layout.of(plan, N_ITEMS)
        assert layout.change_slice.stop == N_ITEMS * structure.width

    def test_the_basis_has_orthogonal_rows_of_one_length(self, structure):
        basis = structure.basis(5, 2)
        if basis is None:
            assert structure.width == structure.dim
            return
        assert basis.shape == (structure.width, structure.dim)
        assert basis.dtype == np.float64
        wanted = np.eye(structure.width) * structure.dim / structure.width
        assert np.abs(basis @ basis.T - wanted).max() < 1e-12

    def test_the_basis_follows_from_seed_and_round_alone(self, name, structure):
        again = UPDATES[name](settings_of(name), structure.dim)
        for seed, round_id in ((5, 2), (5, 3), (6, 2), (2**62, 10**9)):
            one, other = structure.basis(seed, round_id), again.basis(seed, round_id)
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert np.array_equal(one, other)
                assert np.isfinite(one).all()

    def test_merging_is_a_fixed_order_of_elementwise_operations(self, structure, tables):
        table, change, basis = tables
        merged = structure.merge(table, change, basis)
        assert merged.dtype == np.float64
        assert np.array_equal(merged, merged_plainly(table, change, basis))
        matrix = np.eye(structure.dim) if basis is None else basis
        assert np.allclose(merged, table + change @ matrix)

    def test_merging_changes_none_of_its_inputs(self, structure, tables):
        table, change, basis = tables
        before = table.copy(), change.copy(), None if basis is None else basis.copy()
        merged = structure.merge(table, change, basis)
        merged += 1.0
        assert np.array_equal(table, before[0])
        assert np.array_equal(change, before[1])
        assert basis is None or np.array_equal(basis, before[2])

    def test_rows_do_not_depend_on_each_other(self, structure, tables):
        table, change, basis = tables
        whole = structure.merge(table, change, basis)
        for rows in (np.array([4]), np.array([17, 0, 9])):
            assert np.array_equal(structure.merge(table[rows], change[rows], basis), whole[rows])

    def test_no_change_changes_no_bit(self, structure, tables):
        table, change, basis = tables
        assert np.array_equal(structure.merge(table, np.zeros_like(change), basis), table)

    def test_what_cannot_work_is_refused_with_its_problem(self, name):
        kind = UPDATES[name]
        for dim in (1, 2, 64):
            for rank in (1, 2, 64):
                settings = settings_of(name, rank=rank)
                problem = kind.problem(settings, dim)
                if not problem:
                    assert kind(settings, dim).width <= dim
                    continue
                with pytest.raises(SettingsError) as error:
                    kind(settings, dim)
                assert error.value.message == problem
                assert "algorithm.dim" in problem
