"""Maps and sets of clients that never change. Adding a client makes a new one.

A round takes updates one at a time, and every step of its state machine returns a new state. If
each step copied all clients, a round's time would grow with the square of their number. Here the
new map shares all buckets but one with the one before. Comparing the two looks at that bucket
alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from types import MappingProxyType
from typing import Generic, Self, TypeVar

from fedrec.ids import ClientId
from fedrec.wire.messages import UploadHeader

N_BUCKETS = 512
"""Number of buckets. With 100,000 clients, adding one copies 200 references and a bucket of 200."""

Value = TypeVar("Value")


class ByClient(Mapping[ClientId, Value], Generic[Value]):
    """A value for each of some clients."""

    __slots__ = ("_buckets", "_length")

    def __init__(self, found: Mapping[ClientId, Value] = MappingProxyType({})) -> None:
        empty: dict[ClientId, Value] = {}
        buckets = [empty] * N_BUCKETS
        for client_id, value in found.items():
            place = hash(client_id) % N_BUCKETS
            if not buckets[place]:
                buckets[place] = {}
            buckets[place][client_id] = value
        self._buckets, self._length = tuple(buckets), len(found)

    def adding(self, client_id: ClientId, value: Value) -> Self:
        """Return the map with a client's value added."""
        found, buckets = self.__new__(type(self)), list(self._buckets)
        place = hash(client_id) % N_BUCKETS
        buckets[place] = {**buckets[place], client_id: value}
        found._buckets = tuple(buckets)
        found._length = self._length + (client_id not in self)
        return found

    def __getitem__(self, client_id: ClientId) -> Value:
        return self._buckets[hash(client_id) % N_BUCKETS][client_id]

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._buckets[hash(client_id) % N_BUCKETS]

    def __iter__(self) -> Iterator[ClientId]:
        return chain.from_iterable(filter(None, self._buckets))

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByClient):
            return super().__eq__(other)
        # Shared buckets are equal by identity.
        return bool(self._buckets == other._buckets)

    __hash__ = None  # type: ignore[assignment]  # a mapping's

    def __repr__(self) -> str:
        return repr(dict(self))


class Counted(ByClient[UploadHeader]):
    """The updates that a round counts.

    Attributes:
        models: the number of updates that start from each model.
    """

    __slots__ = ("models",)

    def __init__(self, found: Mapping[ClientId, UploadHeader] = MappingProxyType({})) -> None:
        super().__init__(found)
        self.models: Mapping[bytes, int] = Counter(one.base_state for one in found.values())

    def with_update(self, header: UploadHeader) -> Counted:
        """Return the updates with one added, of a client that had none."""
        found, model = self.adding(header.client_id, header), header.base_state
        found.models = {**self.models, model: self.models.get(model, 0) + 1}
        return found


class Asked(Set[ClientId]):
    """The clients that a round is offered to."""

    __slots__ = ("_clients",)

    def __init__(self, clients: Iterable[ClientId] = ()) -> None:
        self._clients = ByClient(dict.fromkeys(clients, True))

    def adding(self, clients: Iterable[ClientId]) -> Asked:
        """Return the set with further clients added."""
        found = Asked.__new__(Asked)
        found._clients = self._clients
        for client_id in clients:
            found._clients = found._clients.adding(client_id, True)
        return found

    @classmethod
    def _from_iterable(cls, clients: Iterable[Value]) -> Set[Value]:
        """Return the result of a set expression, to which nothing is added later."""
        return frozenset(clients)

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._clients

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        return repr(frozenset(self))
