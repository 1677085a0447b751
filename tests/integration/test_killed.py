"""`kill -9` of a client or of the coordinator costs time, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.conftest import Found
from integration.support.bench import KINDS, Bench, federal, merged, plan_of
from integration.support.children import (
    Child,
    ClientProcess,
    CoordinatorProcess,
    KillClient,
    KillCoordinator,
    close_all,
)
from integration.support.links import Acknowledged
from integration.support.parties import Client, Federation, published_rounds
from integration.support.proxy import Proxy

from fedrec.identity.identity import Identity

VICTIM = 2


@contextmanager
def ending(children: list[Child]) -> Iterator[None]:
    """End child processes with a block."""
    try:
        yield
    finally:
        close_all(children)


def check_finished(federation: Federation) -> None:
    """The threads' clients and the killed one ended with the model of an undisturbed run."""
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    assert [event for event in federation.journal() if event.kind == "round abandoned"] == []
    assert federal(federation.metrics()) == federal(merged().metrics)
    bench = federation.bench
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged().model}


def test_a_client_killed_in_training_and_around_the_upload(found: Found) -> None:
    federation = found(plan_of("bfv"))
    for number in range(VICTIM):
        federation.client(number)
    children: list[Child] = []
    with ending(children):
        for kill in (
            KillClient(place="before the upload", round=1),
            KillClient(place="in training", round=2),
            KillClient(place="protected", round=3),
            KillClient(place="sent", round=3),
            KillClient(place="revealing", round=4),
            KillClient(place="sent", round=5),
        ):
            child = ClientProcess(federation.bench, VICTIM, federation.address, kill)
            children.append(child)
            if kill.place == "revealing":
                # Whether this client is asked to reveal depends on the run's random name.
                continue
            assert child.ended() == -signal.SIGKILL, kill
        children.append(ClientProcess(federation.bench, VICTIM, federation.address))
        assert children[-1].told() == "all rounds are published"
        check_finished(federation)
