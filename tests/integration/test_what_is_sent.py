"""Every byte that a client writes to its sockets, searched for what must stay at home."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from integration.support.bench import Bench, plan_of
from integration.support.links import Passing
from integration.support.proxy import Proxy

from fedrec.follower.events import ClientEvent
from fedrec.identity.certificates import CERTIFICATE_FILE
from fedrec.identity.document import write_secret
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_issuer
from fedrec.model.state import PrivateState
from fedrec.wire.link import Link
from fedrec.wire.messages import UploadHeader
from fedrec_client.state.private_store import PrivateStore

WINDOW = 8
"""Two float32 values in a row: chance finds such a match once in 2^64 positions."""


class Tap:
    """Records what goes through a proxy."""

    def __init__(self, address: str, coordinator: Path, client: Path) -> None:
        self._parts: list[bytes] = []
        self._lock = threading.Lock()
        self.proxy = Proxy(address, self._keep, coordinator=coordinator, client=client)

    def _keep(self, data: bytes) -> None:
        with self._lock:
            self._parts.append(data)

    @property
    def recorded(self) -> bytes:
        """Everything so far."""
        with self._lock:
            return b"".join(self._parts)


@contextmanager
def tapped(address: str, bench: Bench) -> Iterator[list[Tap]]:
    """Put a tap in front of every client."""
    keys = bench.workspace.folder / "keys"
    issuer = read_issuer(keys / "authority.pub.json")
    taps = []
    for number in range(bench.n_clients):
        state = bench.state(number)
        own = Identity.load(state).credentials((state / CERTIFICATE_FILE).read_bytes(), issuer)
        write_secret(state.parent / "tapped.pem", own.to_pem())
        taps.append(Tap(address, keys / "coordinator.pem", state.parent / "tapped.pem"))
    try:
        yield taps
    finally:
        for tap in taps:
            tap.proxy.close()


class Payloads:
    """Remembers what clients upload, to know that the search finds what is there."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def __call__(self, link: Link) -> Link:
        sent = self.sent

        class Watched(Passing):
            def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
                sent.append(payload)
                return super().submit_update(header, payload)

        return Watched(link)


class Privates:
    """Every private state that a client ever stored."""

    def __init__(self, bench: Bench, number: int) -> None:
        self._folder = bench.state(number)
        self.seen: dict[str, bytes] = {}

    def __call__(self, event: ClientEvent) -> None:
        for path in self._folder.glob("private-*.bin"):
            self.seen.setdefault(path.name, path.read_bytes())

    def windows(self) -> set[bytes]:
        """Return all pieces of all vectors that were not zero."""
        found = set()
        for raw in self.seen.values():
            for values in PrivateState.from_bytes(raw).tensors.values():
                data = np.ascontiguousarray(values).tobytes()
                found |= {data[at : at + WINDOW] for at in range(0, len(data) - WINDOW + 1, 4)}
        return found


@pytest.mark.parametrize("protection", ["none", "bfv"])
def test_nothing_private_is_written_to_a_socket(found, protection):
    federation = found(plan_of(protection))
    bench = federation.bench
    payloads = Payloads()
    privates = [Privates(bench, number) for number in range(bench.n_clients)]
    with tapped(federation.address, bench) as taps:
        for number, (tap, private) in enumerate(zip(taps, privates, strict=True)):
            federation.client(
                number, client__coordinator=tap.proxy.address, wrap=payloads, on_event=private
            )
        for client in federation.clients:
            client.result()
        recorded = b"".join(tap.recorded for tap in taps)
    check_that_the_search_finds(recorded, payloads.sent)
    for users in bench.users():
        for user in users.user_ids:
            name = user.partition("@")[0]
            assert name.encode() not in recorded
    for private in privates:
        assert len(private.seen) >= 3
        assert not [piece for piece in private.windows() if piece in recorded]
    for number in range(bench.n_clients):
        for secret in secrets_of(bench.state(number)):
            assert secret not in recorded
    if protection != "none":
        assert no_readable_model(bench, recorded)


def check_that_the_search_finds(recorded: bytes, payloads: list[bytes]) -> None:
    """What is known to be sent is found, but for the bytes between two frames."""
    assert len(payloads) == 15
    for payload in payloads:
        pieces = [payload[at : at + 64] for at in range(0, len(payload) - 64, 64)]
        seen = sum(piece in recorded for piece in pieces)
        assert seen >= 0.9 * len(pieces)


def secrets_of(state: Path) -> list[bytes]:
    """Return raw and written forms of a client's secret keys."""
    identity = Identity.load(state)
    keys = [
        identity._signing_key.private_bytes_raw(),
        identity._exchange_key.private_bytes_raw(),
        identity._tls_key.private_numbers().private_value.to_bytes(32, "big"),
    ]
    return [form for key in keys for form in (key, key.hex().encode())]


def no_readable_model(bench: Bench, recorded: bytes) -> bool:
    """Under encryption the model itself is not readable on the line either."""
    store = PrivateStore(bench.state(0), read_only=True)
    assert store.state.shared is not None
    raw = store.read(store.state.shared)
    return not any(raw[at : at + 16] in recorded for at in range(256, len(raw) - 16, 16))
