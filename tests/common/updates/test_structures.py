"""What CoLR promises beside the conformance suite: a basis for each round, a rank that fits."""

import numpy as np
import pytest

from fedrec.errors import SettingsError
from fedrec.updates import UPDATES
from fedrec.updates.settings import UpdateSettings


def test_colr_draws_anew_in_every_round_and_from_the_seed_alone():
    def make():
        return UPDATES["colr"](UpdateSettings(rank=2), 8)

    assert np.array_equal(make().basis(1, 1), make().basis(1, 1))
    assert not np.array_equal(make().basis(1, 1), make().basis(1, 2))
    assert not np.array_equal(make().basis(1, 1), make().basis(2, 1))


def test_a_rank_above_dim_is_refused_with_both_numbers():
    with pytest.raises(SettingsError, match=r"update\.rank is 9, but algorithm\.dim is 8"):
        UPDATES["colr"](UpdateSettings(rank=9), 8)
