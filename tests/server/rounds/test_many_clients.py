"""A round's work for each update is the same however many are counted before it."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import pytest
from server.support.made_messages import client, header, rules

from fedrec.ids import ClientId
from fedrec.protection import Accumulator
from fedrec.wire.messages import UploadHeader
from fedrec_server.rounds.by_client import Asked, ByClient, Counted
from fedrec_server.rounds.events import Polled, Tick, Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.uploads.round_collection import RunningSum

N_CLIENTS = 300


class Remembering(Accumulator):
    """Notes what is added."""

    def __init__(self) -> None:
        self.added: list[bytes] = []

    @property
    def count(self) -> int:
        return len(self.added)

    def add(self, message: bytes) -> None:
        self.added.append(message)

    def finish(self) -> bytes:
        return b"".join(sorted(self.added))


def read(found: UploadHeader) -> bytes:
    return found.client_id.encode()


@pytest.mark.parametrize("join", [False, True])
def test_no_update_and_no_poll_looks_at_all_clients(
    monkeypatch: pytest.MonkeyPatch, join: bool
) -> None:
    clients = [client(number) for number in range(N_CLIENTS)]
    least = 3 if join else N_CLIENTS
    plain = rules(needs_reveal=False, minimum_clients=least)
    state = State(rules=plain, roster=frozenset(clients))
    state, _ = step(state, Tick(now=0.0, live=frozenset(clients[:least])))
    looked: list[int] = []
    walk = ByClient.__iter__

    def counting(self: ByClient[object]) -> Iterator[ClientId]:
        looked.append(len(self))
        return walk(self)

    monkeypatch.setattr(ByClient, "__iter__", counting)
    for each in clients[least:]:
        state, _ = step(state, Polled(now=0.0, client_id=each, live=frozenset()))
    total = RunningSum(Remembering, read)
    for each in clients:
        assert state.current is not None
        assert looked == []
        before = state.current.accepted
        found = header(1, each)
        state, _ = step(state, Uploaded(now=0.0, header=found))
        total.add(before, found, BytesIO(read(found)))
    assert state.current is not None and state.current.phase == "summing"
    assert total.finish(state.current.accepted) == "".join(sorted(clients)).encode()


def test_a_map_never_changes_and_shares_what_is_the_same() -> None:
    empty = Counted()
    first = empty.with_update(header(1, client(0)))
    one, other = (first.with_update(header(1, client(1), said)) for said in ("one", "other"))
    assert (len(empty), len(first), len(one), len(other)) == (0, 1, 2, 2)
    assert one != other and one == first.with_update(header(1, client(1), "one"))
    assert dict(one) == {client(n): header(1, client(n), ("update", "one")[n]) for n in (0, 1)}
    assert one.models == {bytes(32): 2} and Counted(dict(one)) == one
    shared = zip(first._buckets, one._buckets, strict=True)
    assert sum(before is not after for before, after in shared) == 1
    asked = Asked([client(0)])
    assert asked.adding([client(1), client(0)]) == {client(0), client(1)} != asked


def test_a_sum_that_cannot_be_made_again_is_begun_anew() -> None:
    """What was read before a damaged file is in no later sum."""
    damaged = [True]

    def broken(found: UploadHeader) -> bytes:
        if found.client_id == max(client(0), client(1)) and damaged:
            raise OSError("damaged")
        return read(found)

    total = RunningSum(Remembering, broken)
    counted = Counted({client(n): header(1, client(n)) for n in (0, 1)})
    with pytest.raises(OSError, match="damaged"):
        total.finish(counted)
    assert total.finish(Counted()) == b""
    damaged.clear()
    assert total.finish(counted) == "".join(sorted(counted)).encode()
