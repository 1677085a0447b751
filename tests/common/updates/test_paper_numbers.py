"""Table 2 of the CoLR paper: minutes on its link, MovieLens-1M, dim 64, 1000 rounds."""

import pytest

from fedrec.updates import UPDATES
from fedrec.updates.update import UpdateSettings

N_ITEMS, DIM, N_ROUNDS = 3706, 64, 1000
MINUTES = {1: 1.26, 2: 2.51, 4: 5.03, 8: 10.05, 16: 20.11, 32: 40.21, 64: 80.43}


def numbers_of(name, n_items=N_ITEMS, dim=DIM, **settings):
    structure = UPDATES[name](UpdateSettings(structure=name, **settings), dim)
    return structure.paper_numbers(n_items)


def minutes_of(name, **settings):
    return round(numbers_of(name, **settings).link_minutes(N_ROUNDS), 2)


def test_the_base_model():
    assert minutes_of("dense") == 80.43


@pytest.mark.parametrize("rank", [1, 2, 4, 8, 16, 32])
def test_colr_svd_and_topk(rank):
    assert minutes_of("colr", rank=rank) == MINUTES[rank]
    assert minutes_of("svd", rank=rank) == MINUTES[rank]
    # A value and an index: twice as much at the "same" size.
    assert minutes_of("topk", ratio=rank / 64) == MINUTES[2 * rank]


def test_what_a_decoder_would_need():
    svd = numbers_of("svd", rank=4)
    assert (svd.upload, svd.payload) == (4 * 3706, 4 * (3706 + 64 + 1))
    assert numbers_of("topk", ratio=1 / 64).payload == 2 * 3706


def test_scolr_sends_half_as_much_upwards_on_average():
    numbers = numbers_of("scolr", rank=8)
    assert numbers.download == 8 * 3706
    assert 2 * numbers.upload == 9 * 3706
    assert numbers_of("scolr", n_items=3, rank=2).upload == 5
    saved = numbers_of("colr", rank=8).link_minutes(1) - numbers.link_minutes(1)
    assert saved * 60 == pytest.approx(4 * 3.5 * 3706 / 2**20 / 0.25)
