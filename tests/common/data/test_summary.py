"""The numbers of a dataset, small by hand and large as published."""

from fedrec.data import DatasetSummary, Interactions, describe


def test_a_dataset_counted_by_hand():
    interactions = Interactions.from_arrays(
        ["a", "a", "a", "b", "b", "c", "c"],
        ["x", "y", "x", "x", "y", "x", "z"],
        [1, 3, 3, 1, 2, 5, 5],  # a's last two tie, since x counts at its latest time; so do c's
    )
    assert describe(interactions, minimum_item_users=3) == DatasetSummary(
        n_users=3,
        n_items=3,
        n_interactions=6,
        n_duplicates=1,
        density=6 / 9,
        minimum_per_user=2,
        median_per_user=2.0,
        maximum_per_user=2,
        interactions_without_time=0,
        users_with_tied_last_timestamp=2,
        items_with_one_holder=1,  # z
        items_below_minimum_holders=2,  # y, z
    )


def test_without_times_every_user_of_two_items_is_tied():
    interactions = Interactions.from_arrays(["a", "a", "b"], ["x", "y", "x"])
    assert describe(interactions).users_with_tied_last_timestamp == 1


def test_nothing_is_all_zeros():
    summary = describe(Interactions.from_arrays([], []))
    assert summary == DatasetSummary(**dict.fromkeys(DatasetSummary.__slots__, 0))


def test_ml_100k(ml_100k_shuffled):
    summary = describe(ml_100k_shuffled)
    assert (summary.n_users, summary.n_items, summary.n_interactions) == (943, 1682, 100_000)
    assert (summary.minimum_per_user, summary.maximum_per_user) == (20, 737)
    assert summary.n_duplicates == 0
    assert round(summary.density, 4) == 0.0630
    assert summary.users_with_tied_last_timestamp == 415
    assert summary.items_with_one_holder == 141
