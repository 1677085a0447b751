"""Graphs: regular, symmetric, the same for every client, and not the same for every seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import SettingsError
from fedrec.ids import ClientId, digest
from fedrec.protection.masks.terms import draw_holders, ring_neighbours


def clients(count: int) -> list[ClientId]:
    return [ClientId(digest("client", number).hex()) for number in range(count)]


@given(count=st.integers(4, 60), half=st.integers(1, 12), seed=st.binary(max_size=8))
def test_the_ring_is_regular_and_symmetric(count, half, seed):
    degree = min(2 * half, 2 * ((count - 1) // 2))
    graph = ring_neighbours(seed, clients(count), degree)
    for own, neighbours in enumerate(graph):
        assert len(set(neighbours)) == degree and own not in neighbours
        assert all(own in graph[other] for other in neighbours)


def test_a_ring_by_hand():
    """With degree 2 on five clients the neighbours in the order of the hashes form one cycle."""
    names = clients(5)
    order = sorted(range(5), key=lambda i: digest("fedrec mask graph v1", b"s", names[i]))
    graph = ring_neighbours(b"s", names, 2)
    for place, own in enumerate(order):
        expected = {order[place - 1], order[(place + 1) % 5]}
        assert set(graph[own]) == expected


def test_the_ring_does_not_depend_on_the_order_of_the_list():
    names = clients(20)
    straight, turned = (ring_neighbours(b"s", order, 6) for order in (names, names[::-1]))
    for own in range(20):
        assert {names[i] for i in straight[own]} == {names[19 - i] for i in turned[19 - own]}
    assert straight != ring_neighbours(b"another", names, 6)


@pytest.mark.parametrize("count", [3, 4, 7, 31])
def test_the_complete_graph(count):
    graph = ring_neighbours(b"", clients(count), count - 1)
    assert all(set(n) == set(range(count)) - {own} for own, n in enumerate(graph))


def test_the_opposite_side_makes_an_odd_degree():
    graph = ring_neighbours(b"", clients(10), 3)
    assert all(
        len(n) == 3 and all(own in graph[other] for other in n) for own, n in enumerate(graph)
    )


@pytest.mark.parametrize(("count", "degree"), [(5, 3), (5, 5), (5, 0), (2, 2)])
def test_graphs_that_do_not_exist(count, degree):
    with pytest.raises(SettingsError):
        ring_neighbours(b"", clients(count), degree)


def test_own_draws_are_distinct_others_and_new_every_time():
    draws = {draw_holders(3, 50, 20) for _ in range(20)}
    assert len(draws) == 20
    for holders in draws:
        assert len(set(holders)) == 20 and 3 not in holders
        assert holders == tuple(sorted(holders)) and set(holders) <= set(range(50))
