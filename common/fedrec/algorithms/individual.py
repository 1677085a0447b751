"""Rules of a server that reads each update: similarities of users, and mixtures of their tables.

Sums need no update by itself. Graphs and clusters of users do, so an algorithm with `personalise`
gets all updates of a round, one by one, and returns a model for each user. All such rules of the
papers are one matrix: weights of the users' tables for each user's new table.

Tables are read in blocks of `BLOCK_BYTES`, in the order of the users' identities, so that results
don't depend on how users are grouped into clients. Products of blocks are made of pieces of a fixed
size, each by one thread, so results don't depend on the number of threads either. With n users, a
rule takes at most three blocks and four matrices of n x n float64: with 943 users and 1,682 items
0.7 GiB, with 6,040 users of MovieLens-1M 1.9 GiB. Tables of 2.7 GiB are never in memory as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import TRAINING_ITEMS, USER_KEY, Parameter, UpdateTensor
from fedrec.model.state import SharedState
from fedrec.updates.update import UpdateSettings

BLOCK_BYTES = 256 << 20
"""Tables of users that are read, multiplied and written at once."""

_PIECE_USERS, _PIECE_VALUES = 128, 4096
_TRIES, _STEPS = 10, 50

Floats = NDArray[np.float64]


def rule_bytes(n_users: int, table_bytes: int) -> int:
    """Return the memory that a rule takes at most, with tables of this size."""
    return 3 * min(BLOCK_BYTES, n_users * table_bytes) + 4 * 8 * n_users**2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """New tables for users of a round: the k-th is sum_v weights[k, v] (table of user v).

    Attributes:
        of: the shared table for which the users sent their own.
        weights: float64 (n_tables, n_users).
        table_of: the number of the table that each user gets, or -1 if it keeps its own, int64
            (n_users,). None if user u gets table u.
    """

    of: str
    weights: Floats
    table_of: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Personal:
    """The result of `Algorithm.personalise`.

    Attributes:
        own: a mixture for each parameter that users receive, by its name.
        shared: new values of shared tensors, in place of those that sums gave.
    """

    own: Mapping[str, Mixture]
    shared: Mapping[str, Floats] = field(default_factory=dict)


class UserUpdates:
    """The updates of a round's users, one by one.

    Args:
        version: the model that the users started from. Its tables have the active rows alone.
        active: rows of the active items in the catalogue, ascending int64 (n_active,).
        user_keys: the users' identities, ascending int64 (n_users,).
        samples: the users' numbers of training items, int64 (n_users,).
        number: the number of the round, from which an algorithm may draw.
        read: returns the tables that some users sent for a shared one, (n, n_active, ...).
        shown: returns the values of a parameter that users show the server, (n_users, ...).
        threads: the number of threads that multiply.
    """

    def __init__(
        self,
        version: SharedState,
        *,
        active: NDArray[np.int64],
        user_keys: NDArray[np.int64],
        samples: NDArray[np.int64],
        number: int,
        read: Callable[[str, NDArray[np.int64]], NDArray[np.floating]],
        shown: Callable[[str], NDArray[np.floating]],
        threads: int = 1,
    ) -> None:
        self.version, self.active, self.number = version, active, number
        self.user_keys, self.samples, self._read = user_keys, samples, read
        self.shown, self._threads = shown, threads
        self._kept: tuple[tuple[str, int], NDArray[np.floating]] | None = None

    def __len__(self) -> int:
        return len(self.user_keys)

    def of_users(self, name: str, users: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the tables that some users sent, (n, n_active, ...), by their positions."""
        return self._read(name, users)

    def blocks(self, name: str) -> Iterator[tuple[slice, NDArray[np.floating]]]:
        """Yield all users' tables for a shared one, flat: (users, (n, values of a table))."""
        for part in self.parts(name):
            yield part, self._block(name, part)

    def _block(self, name: str, part: slice) -> NDArray[np.floating]:
        """Return the flat tables of some users. The last ones that were read are kept."""
        if self._kept is None or self._kept[0] != (name, part.start):
            self._kept = None
            tables = self._read(name, np.arange(len(self))[part])
            self._kept = (name, part.start), tables.reshape(len(tables), -1)
        return self._kept[1]

    def parts(self, name: str, n_tables: int | None = None) -> list[slice]:
        """Return the tables of each block, by default all users'."""
        n_tables = len(self) if n_tables is None else n_tables
        at_once = max(1, BLOCK_BYTES // max(1, 4 * self.version.kept[name].size))
        return [slice(at, min(n_tables, at + at_once)) for at in range(0, n_tables, at_once)]

    def products(self, name: str, origin: Floats | None = None) -> Floats:
        """Return the inner products of all pairs of users' tables, (n_users, n_users).

        Args:
            origin: is subtracted from every table, (n_active, ...).
        """
        found = np.zeros((len(self), len(self)))
        parts = self.parts(name)
        for number, rows in enumerate(parts):
            left = self._around(name, rows, origin)
            own = found[rows, rows]
            self._add_product(own, left, left.T, _PIECE_USERS, is_symmetric=True)
            upper = np.triu_indices(len(own), 1)
            own[upper] = own.T[upper]
            for columns in parts[:number]:
                right = self._around(name, columns, origin).T
                self._add_product(found[rows, columns], left, right, _PIECE_USERS)
                found[columns, rows] = found[rows, columns].T
        return found

    def _add_product(
        self,
        into: NDArray[np.floating],
        left: NDArray[np.floating],
        right: NDArray[np.floating],
        size: int,
        *,
        is_symmetric: bool = False,
    ) -> None:
        """Add a matrix product in pieces of `size` columns, which threads share.

        Args:
            is_symmetric: whether to leave out pieces above the diagonal.
        """

        def add(begin: int) -> None:
            piece, rows = slice(begin, begin + size), slice(begin * is_symmetric, None)
            into[rows, piece] += left[rows] @ right[:, piece]

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(add, range(0, into.shape[1], size)))

    def _around(self, name: str, part: slice, origin: Floats | None) -> NDArray[np.floating]:
        tables = self._block(name, part)
        return tables if origin is None else tables - origin.reshape(-1).astype(tables.dtype)

    def mixed(self, name: str, weights: Floats) -> NDArray[np.floating]:
        """Return weighted sums of users' tables, (n_sums, n_active, ...).

        Args:
            weights: float64 (n_sums, n_users).
        """
        shape = (len(weights), *self.version.kept[name].shape)
        found: NDArray[np.floating] | None = None
        for part, tables in self.blocks(name):
            if found is None:
                found = np.zeros((len(weights), tables.shape[1]), tables.dtype)
            share = weights[:, part].astype(tables.dtype)
            self._add_product(found, share, tables, _PIECE_VALUES)
        return np.zeros(shape) if found is None else found.reshape(shape)


def shown_tensors(
    parameters: Sequence[Parameter], update: UpdateSettings, *, reads_samples: bool
) -> list[UpdateTensor]:
    """Return the tensors of an update that only show the server a user."""
    found = [
        UpdateTensor(
            name=entry.name,
            shape=entry.shape or (1,),
            limit=update.clip,
            fraction_bits=update.fraction_bits,
        )
        for entry in parameters
        if entry.shown
    ]
    for name, n_values, n_bits in ((USER_KEY, 4, 16), (TRAINING_ITEMS, 1, 24)):
        if name == USER_KEY or reads_samples:
            found.append(
                UpdateTensor(
                    name=name,
                    shape=(n_values,),
                    limit=float(1 << n_bits),
                    fraction_bits=n_bits,
                    signed=False,
                )
            )
    return found


def clusters_of(rows: Floats, n_clusters: int, *, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each row by K-means, the best of `_TRIES` from k-means++.

    There are at most as many clusters as distinct rows. Some numbers may belong to no row. K-means
    is SciPy's: scikit-learn's, which needs SciPy too, takes 128 MiB more for the same clusters.
    """
    from scipy.cluster.vq import kmeans2

    n_clusters = min(n_clusters, len(np.unique(rows, axis=0)))
    best = np.inf, np.zeros(len(rows), dtype=np.int64)
    for number in range(_TRIES):
        with warnings.catch_warnings():
            # An empty cluster keeps its centre, and nothing else depends on it.
            warnings.simplefilter("ignore", UserWarning)
            centres, labels = kmeans2(
                rows, n_clusters, iter=_STEPS, minit="++", rng=np.random.default_rng([seed, number])
            )
        apart = float(((rows - centres[labels]) ** 2).sum())
        if apart < best[0]:
            best = apart, labels.astype(np.int64)
    return best[1]


def cosines(products: Floats) -> Floats:
    """Return the cosines that belong to inner products. Those of a table of zeros are 0."""
    lengths = np.sqrt(products.diagonal())
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    found = products * inverse[:, None]
    found *= inverse
    return found
