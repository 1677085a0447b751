"""Cells that an authority's folder makes, and what it refuses."""

from __future__ import annotations

import pytest
from world.federation import keep, rotate

from fedrec.errors import KeysError
from fedrec.identity.identity import Identity
from fedrec.plan.schema import Plan
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.members.cell_placement import cell_size_of

MASKS = Plan.model_validate({"federation": {"name": "t"}, "protection": {"name": "masks"}})
NONE = Plan.model_validate({"federation": {"name": "t"}, "protection": {"name": "none"}})


def test_a_cell_has_as_many_as_a_sum_at_least():
    least = max(3, MASKS.rounds.minimum_summands)
    assert cell_size_of(MASKS) == least
    assert cell_size_of(NONE) == 0
    rounds = MASKS.rounds.model_copy(update={"minimum_summands": least + 4})
    assert cell_size_of(MASKS.model_copy(update={"rounds": rounds})) == least + 4


def test_epochs_follow_each_other_and_a_place_goes_to_new_keys(tmp_path):
    folder = AuthorityFolder(tmp_path / "keys")
    people = [Identity.create() for _ in range(cell_size_of(MASKS) + 1)]
    empty = folder.begin(MASKS, 12)
    keep(folder, empty)
    first = rotate(folder).roster
    assert not first.members and not first.partition.cells
    keep(folder, folder.membership.of_exactly([p.public for p in people], 1))
    second = rotate(folder).roster
    assert second.previous == first.digest()
    assert [set(c.core) for c in second.partition.cells] == [{p.client_id for p in people}]
    new = Identity.create().public
    keep(folder, folder.membership.with_successor(people[0].client_id, new, 2))
    third = rotate(folder).roster
    assert set(third.partition.cells[0].core) == {
        new.client_id,
        *(p.client_id for p in people[1:]),
    }
    assert third.partition.since(new.client_id) == second.epoch
    with pytest.raises(KeysError, match="is or was a member"):
        folder.membership.with_successor(new.client_id, people[0].public, 3)
    rounds = MASKS.rounds.model_copy(update={"minimum_summands": 9})
    for changed in (MASKS.model_copy(update={"rounds": rounds}), NONE):
        with pytest.raises(KeysError, match="cells of"):
            folder.begin(changed, 12)


@pytest.mark.parametrize(("algorithm", "least"), [("ease", 32), ("fedals", 32), ("fedmf", 3)])
def test_exact_counts_of_single_users_need_large_cells(tmp_path, algorithm, least):
    for size in (3, 31, 32):
        plan = Plan.model_validate(
            {
                "federation": {"name": "t"},
                "algorithm": {"name": algorithm},
                "update": {"structure": "dense"},
                "protection": {"name": "masks"},
                "rounds": {"minimum_summands": size, "minimum_clients": size},
            }
        )
        folder = AuthorityFolder(tmp_path / str(size))
        membership = folder.begin(plan, 12)
        keep(folder, membership.with_member(Identity.create().public, 1, users_cap=1))
        if size >= least:
            assert rotate(folder).roster.epoch == 1
            continue
        with pytest.raises(KeysError, match="one user each"):
            rotate(folder)
        assert folder.newest is None, "no epoch was made"
