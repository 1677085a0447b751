"""What the papers' protocol says of data without any structure: the held-out items are told apart.

Everybody holds items drawn uniformly, so that nothing can be learned and chance has HR@10 of .10.
An independent sketch of FedRAP in numpy saw .98 to 1.00 under `paper` and .08 to .10 otherwise.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.config.schema import Settings
from fedrec.data import Catalogue, Interactions, leave_one_out
from fedrec.simulation import simulate

N_USERS, N_ITEMS, HELD = 100, 500, 44


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "least", "most"), [("paper", 0.95, 1.0), ("sampled", 0, 0.15)]
)
def test_a_private_table_finds_what_was_never_sampled(protocol, least, most):
    draw = np.random.default_rng(1)
    names = np.array([f"i{number:03d}" for number in range(N_ITEMS)], dtype=object)
    items = np.concatenate([draw.permutation(N_ITEMS)[:HELD] for _ in range(N_USERS)])
    users = np.repeat([f"u{number:03d}" for number in range(N_USERS)], HELD).astype(object)
    interactions = Interactions(
        user_ids=users, item_ids=names[items], timestamps=np.tile(np.arange(HELD), N_USERS)
    )
    catalogue = Catalogue(item_ids=tuple(names), titles=tuple(names))
    settings = Settings.model_validate(
        {
            "federation": {"minimum_item_users": 1, "maximum_users": 128, "seed": 2},
            "algorithm": {"name": "fedrap", "schedule": "fixed"},
            "update": {"structure": "dense", "clip": 16.0, "fraction_bits": 24},
            "protection": {"name": "none"},
            "evaluation": {"protocol": protocol, "every_rounds": 5},
            "rounds": {"total": 20},
            "client": {"device": "cpu", "threads": 1},
        }
    )
    split = leave_one_out(interactions, catalogue)
    result = simulate(settings, n_clients=1, users=split, catalogue=catalogue)
    ((found,),) = result.comparison().rows[0].samples.values()
    assert found.rates.users == N_USERS
    assert least <= found.rates.hr <= most
