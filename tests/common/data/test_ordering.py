"""Canonical orders and the published tie rule."""

import numpy as np

from fedrec.data import encode_ids, recency_keys, sorted_ids


def test_ids_of_digits_are_ordered_as_numbers():
    assert sorted_ids(["10", "9", "100", "9"]) == ["9", "10", "100"]


def test_other_ids_are_ordered_as_text():
    assert sorted_ids(["10", "9", "a"]) == ["10", "9", "a"]
    assert sorted_ids(["\u0663", "12"]) == ["12", "\u0663"]  # an Arabic digit is no ASCII digit


def test_encoding_gives_each_row_its_position():
    distinct, index = encode_ids(np.array(["b", "a", "b"], dtype=object))
    assert distinct == ["a", "b"]
    assert index.tolist() == [1, 0, 1]


def test_encoding_of_nothing_is_empty():
    distinct, index = encode_ids(np.array([], dtype=object))
    assert distinct == []
    assert index.shape == (0,)


def test_tie_keys_are_the_first_eight_bytes_of_sha256():
    # printf '1\t1' | sha256sum; printf '1\t2' | sha256sum; printf 'é\tx' | sha256sum
    assert recency_keys(["1", "1", "é"], ["1", "2", "x"]).tolist() == [
        0x280C4D14426F9C42,
        0xD9304E370FD3F9E3,
        0x7A3D5CD2719A7671,
    ]
