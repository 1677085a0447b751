"""What compiled code shares: exact flags, inner products, shuffles and whole weights."""

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from fedrec.algorithms.accelerators import fedncf
from fedrec.algorithms.accelerators.compiled import (
    Sampled,
    dots,
    fused,
    open_space,
    shuffled,
    train_in_parts,
)
from fedrec.random_streams import mix


@njit
def products(one, two, three, four, five):
    return dots((one, two), (three, four, five))


@njit
def product(one, other):
    return dots((one,), (other,))[0]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, 31, 64])
def test_inner_products_of_whole_numbers_are_exact(length):
    values = np.random.default_rng(length).integers(-50, 51, (5, length))
    expected = [values[one] @ values[other] for one in (0, 1) for other in (2, 3, 4)]
    assert list(products(*values.astype(np.float32))) == expected


def test_inner_products_are_the_same_bits_alone_and_together():
    values = np.random.default_rng(1).normal(size=(5, 45)).astype(np.float32)
    alone = [product(values[one], values[other]) for one in (0, 1) for other in (2, 3, 4)]
    assert list(products(*values)) == alone
    exact = values.astype(np.float64)
    assert alone[0] == pytest.approx(exact[0] @ exact[2], abs=1e-5)


def test_partial_sums_are_added_in_the_order_that_is_promised():
    """1e8 + 1 is 1e8 in float32: what is added to what decides which of the ones are lost."""
    ones, values = np.ones(17, dtype=np.float32), np.zeros(17, dtype=np.float32)
    # Places 0, 8 share a sum, and 0 and 4 meet before 0 and 2; 16 comes last, by itself.
    values[[0, 8, 4]] = 1e8, 1.0, -1e8
    assert product(ones, values) == 0.0
    values[:] = 0.0
    values[[0, 2, 4]] = 1e8, 1.0, -1e8
    assert product(ones, values) == 1.0
    values[:] = 0.0
    values[[0, 4, 16]] = 1e8, -1e8, 1.0
    assert product(ones, values) == 1.0


def test_inner_products_of_columns_are_refused():
    table = np.ones((8, 8), dtype=np.float32)
    with pytest.raises(TypingError, match="contiguous"):
        product(table[:, 0], table[0])


def test_a_fused_product_is_rounded_once():
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, whose last term a product of its own would lose."""

    @njit
    def run(one, other, addend):
        return fused(one, other, addend)

    value = np.float32(1 + 2**-12)
    assert run(value, value, np.float32(-1 - 2**-11)) == 2**-24
    assert value * value - np.float32(1 + 2**-11) == 0.0


@pytest.mark.parametrize("n_samples", [1, 2, 3, 64, 65, 3685])
def test_shuffles_are_the_order_of_the_words(n_samples):
    space = open_space(np.array([0, n_samples]), 0, 10, 2)
    for key in (-(2**62) - 5, 77):
        words = (mix(np.arange(n_samples) + key) >> 22) & ((1 << 42) - 1)
        found = shuffled(n_samples, key, space)
        assert np.array_equal(found, np.argsort(words, kind="stable"))


def network_sums(weights, chosen, bound=2.0**40):
    """Train some of seven users of unequal activity; return the networks' sum and the clipped."""
    rng = np.random.default_rng(5)
    held = [np.sort(rng.choice(40, size, replace=False)) for size in (3, 9, 14, 5, 20, 7, 11)]
    vectors = rng.normal(size=(7, 6)).astype(np.float32)
    pointers = np.cumsum([0] + [len(held[user]) for user in chosen])
    positives = np.concatenate([held[user] for user in chosen])
    users = fedncf.FedNCFUsers(
        sampled=Sampled(
            pointers=pointers,
            positives=positives,
            excluded_pointers=pointers,
            excluded=positives,
            negative_keys=np.array(chosen) * 1_000_003,
            shuffle_keys=np.array([chosen]) * 7_000_003,
        ),
        vectors=vectors[chosen],
        weights=np.array(weights),
    )
    size = 32 * 12 + 32 + 16 * 32 + 16 + 8 * 16 + 8 + 8 + 1
    common = fedncf.FedNCFRound(
        items=rng.normal(size=(40, 6)).astype(np.float32),
        network=rng.uniform(-0.4, 0.4, size).astype(np.float32),
        rate=0.3,
        user_rate=1.0,
        item_rate=1.0,
        decay=0.0,
        epochs=1,
        batch_size=16,
        negatives_per_positive=4,
        scale=2.0**16,
        bound=2.0**20,
        network_scale=2.0**26,
        network_bound=bound,
    )
    shapes = (common.items.shape, (40,), common.network.shape)
    found = train_in_parts(fedncf._train_part, (users, common), len(chosen), 2, shapes)
    assert found.finite
    return found.sums[2], found.clipped


@pytest.mark.slow
def test_networks_are_rounded_before_they_are_weighted():
    chosen, weights = list(range(7)), [1, 2, 3, 5, 7, 4096, 13]
    alone = [network_sums([1], [user])[0] for user in chosen]
    expected = sum(weight * own for weight, own in zip(weights, alone, strict=True))
    assert np.array_equal(network_sums(weights, chosen)[0], expected)
    assert np.abs(alone[0]).max() > 1000


def test_networks_are_clipped_before_they_are_weighted():
    free, none = network_sums([1], [4])
    assert none.sum() == 0
    found, clipped = network_sums([4096], [4], bound=5.0)
    assert np.array_equal(found, 4096 * np.clip(free, -5, 5))
    assert clipped.tolist() == [(np.abs(free) > 5).sum()]
