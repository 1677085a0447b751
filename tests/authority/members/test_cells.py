"""How members are dealt to cells."""

from fractions import Fraction
from itertools import combinations

import pytest
from world.federation import keep, rotate
from world.plans import plan_of

from fedrec.errors import KeysError
from fedrec.identity.identity import Identity
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.members.cell_placement import (
    HONEST,
    cell_size_of,
    counted_share,
    size_needed,
    too_few_honest,
)

MASKS = plan_of(federation={"name": "t"}, protection={"name": "masks"})
NONE = plan_of(federation={"name": "t"}, protection={"name": "none"})


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
        plan = plan_of(
            federation={"name": "t"},
            algorithm={"name": algorithm},
            update={"structure": "dense"},
            protection={"name": "masks"},
            rounds={"minimum_summands": size, "minimum_clients": size},
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


TENTH, FIFTH = Fraction(1, 10), Fraction(1, 5)


@pytest.mark.parametrize(
    ("n_clients", "share", "bits", "size"),
    [
        (100, TENTH, 20, 10),
        (100, TENTH, 40, 13),
        (1_000, TENTH, 20, 12),
        (1_000, TENTH, 40, 18),
        (10_000, TENTH, 20, 13),
        (10_000, TENTH, 40, 19),
        (100, FIFTH, 20, 13),
        (100, FIFTH, 40, 19),
        (1_000, FIFTH, 20, 16),
        (1_000, FIFTH, 40, 25),
        (10_000, FIFTH, 20, 18),
        (10_000, FIFTH, 40, 27),
    ],
)
def test_sizes_are_those_that_were_published(n_clients, share, bits, size):
    assert size_needed(n_clients, share, bits) == size


@pytest.mark.parametrize("size", [3, 4, 5, 6])
@pytest.mark.parametrize("corrupt", [0, 1, 2, 4])
def test_a_chance_is_that_of_all_draws(size, corrupt):
    n_clients = 9
    draws = list(combinations(range(n_clients), size))
    bad = sum(sum(one >= corrupt for one in draw) < HONEST for draw in draws)
    expected = min(Fraction(1), Fraction(n_clients // size * bad, len(draws)))
    assert too_few_honest(n_clients, Fraction(corrupt, n_clients), size) == expected


def test_shares_of_clients_are_rounded_up_and_too_few_honest_have_no_size():
    assert too_few_honest(9, Fraction(1, 100), 3) == too_few_honest(9, Fraction(1, 9), 3) > 0
    assert size_needed(5, TENTH, 20) == 4, "one of five is corrupt; four have three honest at least"
    assert size_needed(4, Fraction(1, 2), 20) is None


def test_availability_is_that_of_whole_cells():
    tenth = [round(counted_share(size, 0.10), 2) for size in (3, 5, 10, 20, 32)]
    assert tenth == [0.73, 0.59, 0.35, 0.12, 0.03]
    hundredth = [round(counted_share(size, 0.01), 2) for size in (3, 5, 10, 20, 32)]
    assert hundredth == [0.97, 0.95, 0.90, 0.82, 0.72]
