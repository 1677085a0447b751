"""Generate interactions with planted tastes, so that the right recommendations are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import Interactions
from fedrec.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyntheticDataset:
    """Generated interactions and the truth behind them.

    Attributes:
        interactions: each user's items in a random order of time, without ties.
        catalogue: all items, held or not. Titles name the cluster.
        user_ids: n_users ids in canonical order.
        user_cluster: int64 of shape (n_users,), in the order of `user_ids`.
        item_cluster: int64 of shape (n_items,), in the order of the catalogue's rows.
    """

    interactions: Interactions
    catalogue: Catalogue
    user_ids: tuple[str, ...]
    user_cluster: NDArray[np.int64]
    item_cluster: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"SyntheticDataset({self.interactions!r}, {self.catalogue!r})"


def generate(
    *,
    n_users: int,
    n_items: int,
    n_clusters: int,
    interactions_per_user: int,
    noise: float = 0.0,
    seed: int = 0,
) -> SyntheticDataset:
    """Generate users that like the items of their own cluster.

    User u and item i belong to clusters ``u % n_clusters`` and ``i % n_clusters``. Each of a user's
    items is distinct and comes from the user's cluster or, with probability `noise`, uniformly from
    all items. ``noise=1`` has no structure to learn. The same arguments give the same data.

    Raises:
        DataError: the numbers are inconsistent. The message has every problem.
    """
    own_size = n_items // n_clusters if n_clusters > 0 else 0
    available = n_items if noise >= 1 else own_size
    problems = []
    if min(n_users, n_items, n_clusters, interactions_per_user) < 1:
        problems.append("users, items, clusters and interactions must be 1 or more each")
    if not 0 <= noise <= 1:
        problems.append(f"noise is {noise}, expected 0 to 1")
    if interactions_per_user > available:
        problems.append(f"{interactions_per_user} distinct items of {available} cannot be drawn")
    if problems:
        raise DataError(
            f"This dataset cannot be generated: {'; '.join(problems)}.",
            remedy="Use more items, or fewer clusters or interactions.",
        )
    random = np.random.Generator(np.random.Philox(seed))
    user_cluster = np.arange(n_users, dtype=np.int64) % n_clusters
    item_cluster = np.arange(n_items, dtype=np.int64) % n_clusters
    drawn = _draw(random, user_cluster, item_cluster, n_clusters, interactions_per_user, noise)
    user_ids = _numbered("u", n_users)
    item_ids = _numbered("i", n_items)
    catalogue = Catalogue.of(
        item_ids,
        [f"Cluster {k}, item {i}" for i, k in enumerate(item_cluster.tolist())],
    )
    interactions = Interactions(
        user_ids=np.repeat(np.array(user_ids, dtype=np.object_), interactions_per_user),
        item_ids=np.array(item_ids, dtype=np.object_)[drawn.ravel()],
        timestamps=np.tile(np.arange(interactions_per_user, dtype=np.int64), n_users),
    )
    return SyntheticDataset(
        interactions=interactions,
        catalogue=catalogue,
        user_ids=tuple(user_ids),
        user_cluster=user_cluster,
        item_cluster=item_cluster,
    )


def _draw(
    random: np.random.Generator,
    user_cluster: NDArray[np.int64],
    item_cluster: NDArray[np.int64],
    n_clusters: int,
    interactions_per_user: int,
    noise: float,
) -> NDArray[np.int64]:
    """Draw distinct items for each user, shape (n_users, interactions_per_user).

    Repeated items are drawn again until none is left. This keeps memory linear in the interactions,
    not in users times items.
    """
    n_items = len(item_cluster)
    cluster_sizes = np.bincount(item_cluster, minlength=n_clusters)
    drawn = np.full((len(user_cluster), interactions_per_user), -1, dtype=np.int64)
    users, slots = np.nonzero(drawn < 0)
    while len(users):
        clusters = user_cluster[users]
        own = clusters + n_clusters * random.integers(cluster_sizes[clusters])
        anywhere = random.integers(n_items, size=len(users))
        drawn[users, slots] = np.where(random.random(len(users)) < noise, anywhere, own)
        touched = np.unique(users)
        block = drawn[touched]
        order = np.argsort(block, axis=1, kind="stable")
        ascending = np.take_along_axis(block, order, axis=1)
        repeated = np.zeros(block.shape, dtype=np.bool_)
        np.put_along_axis(repeated, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], 1)
        at, slots = np.nonzero(repeated)
        users = touched[at]
    return drawn


def _numbered(prefix: str, count: int) -> list[str]:
    width = len(str(count - 1))
    return [f"{prefix}{number:0{width}d}" for number in range(count)]
