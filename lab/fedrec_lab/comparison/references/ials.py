"""iALS (Hu, Koren, Volinsky 2008) as the package `implicit` trains it, on all data in one place.

The package weighs an interaction with alpha and everything else with 1. Its random numbers follow
from the seed, its sums from the number of threads: two machines agree to some digits only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.extras import how_to_install
from fedrec_lab.comparison.references.reference import Fitted, ScoredReference

GRID = ((1.0, 10.0), (5.0, 20.0), (10.0, 50.0))
"""alpha and lambda."""
DIM = 64
ITERATIONS = 15


class IALS(ScoredReference):
    """Alternating least squares for each (alpha, lambda) of `GRID`."""

    name: ClassVar[str] = "ials"
    label: ClassVar[str] = "iALS, centralised (implicit)"
    seeded: ClassVar[bool] = True

    def fit(self, users: UserSplit, n_items: int, seed: int) -> Iterator[Fitted]:
        """Yield a model for each setting; see `ScoredReference.fit`.

        Raises:
            SettingsError: the package is not installed.
        """
        try:
            from implicit.cpu.als import AlternatingLeastSquares
            from scipy.sparse import csr_matrix
            from threadpoolctl import threadpool_limits
        except ImportError as error:
            raise SettingsError(
                "The package implicit is not installed.",
                remedy=f"Install it with: {how_to_install('implicit')}",
            ) from error
        values = np.ones(users.n_train, dtype=np.float32)
        held = csr_matrix(
            (values, users.train_items.astype(np.int32), users.train_indptr.astype(np.int32)),
            shape=(len(users), n_items),
        )
        for alpha, regularisation in GRID:
            # Threads of BLAS below threads of the package only wait for each other.
            with threadpool_limits(1, "blas"):
                model = AlternatingLeastSquares(
                    factors=DIM,
                    regularization=regularisation,
                    alpha=alpha,
                    iterations=ITERATIONS,
                    random_state=seed % (1 << 32),
                )
                model.fit(held, show_progress=False)
            users_table = np.asarray(model.user_factors, dtype=np.float64)
            items_table = np.asarray(model.item_factors, dtype=np.float64)

            def scores(
                rows: NDArray[np.int64],
                of_users: NDArray[np.float64] = users_table,
                of_items: NDArray[np.float64] = items_table,
            ) -> NDArray[np.float64]:
                return np.asarray(of_users[rows] @ of_items.T)

            yield Fitted(setting=f"alpha {alpha:g}, lambda {regularisation:g}", scores=scores)
