"""Planted clusters are where they were planted."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import SyntheticDataset, generate, leave_one_out
from fedrec.errors import DataError


def share_of_own_cluster(dataset: SyntheticDataset) -> float:
    split = leave_one_out(dataset.interactions, dataset.catalogue)
    assert split.user_ids == dataset.user_ids
    own = dataset.item_cluster[split.test_items] == dataset.user_cluster
    return float(own.mean())


def test_without_noise_everything_is_in_the_users_cluster():
    dataset = generate(n_users=30, n_items=12, n_clusters=3, interactions_per_user=4, seed=1)
    assert dataset.user_cluster.tolist() == [0, 1, 2] * 10
    assert dataset.item_cluster.tolist() == [0, 1, 2] * 4
    # 12 items in 3 clusters are 4 each: every user holds exactly the own cluster.
    split = leave_one_out(dataset.interactions, dataset.catalogue)
    assert share_of_own_cluster(dataset) == 1.0
    for index, cluster in enumerate(dataset.user_cluster):
        held = {
            *split.train_of(index).tolist(),
            int(split.validation_items[index]),
            int(split.test_items[index]),
        }
        assert held == set(np.flatnonzero(dataset.item_cluster == cluster).tolist())


def test_every_user_has_as_many_distinct_items_as_asked_for():
    dataset = generate(
        n_users=50, n_items=40, n_clusters=4, interactions_per_user=8, noise=0.5, seed=2
    )
    assert len(dataset.interactions.deduplicated()) == len(dataset.interactions) == 400
    assert dataset.interactions.n_users == 50
    assert dataset.catalogue.n_items == 40


@pytest.mark.parametrize("noise", [0.0, 0.4, 1.0])
def test_noise_is_the_share_drawn_from_everywhere(noise):
    dataset = generate(
        n_users=20_000, n_items=2_000, n_clusters=4, interactions_per_user=3, noise=noise, seed=3
    )
    # A noisy draw falls into the own cluster one time in four; five standard errors are .018.
    assert share_of_own_cluster(dataset) == pytest.approx(1 - noise * 3 / 4, abs=0.018)


def test_structureless_data_uses_all_items_evenly():
    dataset = generate(
        n_users=5_000, n_items=20, n_clusters=4, interactions_per_user=10, noise=1.0, seed=4
    )
    rows = dataset.catalogue.rows_of(dataset.interactions.item_ids.tolist())
    # Each item is held by half of the users: 2500, standard deviation 35.
    assert np.abs(np.bincount(rows, minlength=20) - 2_500).max() < 5 * 35.4


def test_the_same_seed_gives_the_same_data():
    def items(seed: int) -> list[str]:
        dataset = generate(
            n_users=9, n_items=20, n_clusters=2, interactions_per_user=5, noise=0.3, seed=seed
        )
        return dataset.interactions.item_ids.tolist()

    assert items(5) == items(5)
    assert items(5) != items(6)


def test_misfits_are_named_together():
    with pytest.raises(DataError, match=r"noise is 2, .* 9 distinct items of 8"):
        generate(n_users=1, n_items=8, n_clusters=2, interactions_per_user=9, noise=2)
    with pytest.raises(DataError, match="5 distinct items of 4"):
        generate(n_users=1, n_items=8, n_clusters=2, interactions_per_user=5, noise=0.9)
    with pytest.raises(DataError, match="1 or more each"):
        generate(n_users=0, n_items=8, n_clusters=0, interactions_per_user=1)
