"""Clients that are unfit, send too much or have a full disk."""

import json
import random

import numpy as np
import pytest
from filling_disk import Disk
from world.bench import merged, plan_of
from world.clock import poll
from world.parties import check_against_one_process
from world.plans import params

from fedrec.durable import DiskFull
from fedrec.errors import (
    SumOutOfBounds,
)
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_authority.opening.sum_opening import _UNFIT
from fedrec_client.state.private_store import PrivateStore
from fedrec_server.rounds.endings import OUT_OF_BOUNDS
from fedrec_server.uploads.round_sum import ItemHolders

SPOILER = 3


def begun(found, spoiler, **plan):
    federation = found(plan_of(n_clients=4, **plan), 4)  # type: ignore[arg-type]
    spoiler.folder = federation.bench.state(SPOILER)
    for number in range(4):
        federation.client(number)
    return federation


def abandoned(federation):
    events = [event for event in federation.journal() if event.kind == "round abandoned"]
    return [(event.round, str(event.fields["reason"])) for event in events]


@pytest.mark.parametrize(
    "pair",
    params(("fedmf", "masks"), ("ease", "none"), long=[("fedmf", "none"), ("ease", "masks")]),
    ids=" ".join,
)
def test_the_coordinator_refuses_what_it_can_read(found, spoiler, pair):
    """Clients, who would refuse it as well, never see it. The journal names no item."""
    algorithm, protection = pair
    federation = begun(found, spoiler, protection=protection, algorithm=algorithm)
    check_against_one_process(federation)
    assert abandoned(federation) == [(2, OUT_OF_BOUNDS)]
    assert not spoiler.rounds


def test_the_authority_refuses_it(found, revealing, spoiler):
    federation = begun(found, spoiler, protection="bfv", key_holder="authority")
    events = revealing(federation)
    keys = AuthorityFolder(federation.bench.workspace.folder / "keys")
    log = keys.revealer.folder / STATE_FOLDER
    check_against_one_process(federation)
    assert "reveal refused" in {event.name for event in events}
    (line,) = (log / AUDIT_FILE).read_text().splitlines()
    text = json.loads(line)
    assert (text["event"], text["code"], text["round"]) == (
        "reveal_refused",
        "sum_out_of_bounds",
        2,
    )
    ((number, reason),) = abandoned(federation)
    assert (number, reason) == (2, f"the key authority refused the sum: {_UNFIT}")


def test_members_refuse_it(found, spoiler):
    """Each decrypts it itself, applies nothing, reports nothing, and says why it stops."""
    federation = begun(found, spoiler, protection="bfv")
    bench = federation.bench
    for number, client in enumerate(federation.clients):
        assert isinstance(client.failure(), SumOutOfBounds)
        (line,) = (bench.state(number) / AUDIT_FILE).read_text().splitlines()
        text = json.loads(line)
        assert (text["event"], text["code"], text["round"]) == (
            "published_round_refused",
            "sum_out_of_bounds",
            2,
        )
        assert PrivateStore(bench.state(number), read_only=True).state.version == 1
    federation.clock.jump(bench.plan.rounds.report_seconds)
    (unclear,) = poll(
        lambda: [e for e in federation.journal() if (e.kind, e.round) == ("round measured", 2)]
    )
    assert unclear.fields["reason"] == "fewer than two clients reported"
    assert unclear.fields["metrics"] == []


def test_a_restarted_coordinator_knows_the_count(found, spoiler):
    """Pairs are held to holders that were published before the process began."""
    federation = begun(found, spoiler, protection="none", algorithm="ease")
    check_against_one_process(federation)
    engine = federation.coordinator.engine
    (first, *_), holders = federation.published(), ItemHolders(engine.run).known()
    assert holders is not None and first.kind == "count"
    counts = np.zeros(len(holders.last), dtype=np.int64)
    for users in federation.bench.users():
        counts += np.bincount(users.train_items, minlength=len(counts))
    assert np.array_equal(holders.last, counts) and holders.first is holders.last


MOST_WRITES = 30
"""More than the writes of one commit, which begins anew where one of them fails."""
MORE = [pytest.param(seed, marks=pytest.mark.long) for seed in range(3)]


def gaps(seed):
    """Yield how many writes succeed in between."""
    draw = random.Random(seed)
    while True:
        yield draw.randrange(MOST_WRITES)


@pytest.mark.parametrize("seed", [0, *MORE[1:]])
def test_a_client_goes_on(found, monkeypatch, seed):
    federation = found(plan_of(("bfv", "masks", "none")[seed % 3]))
    disk = Disk(federation.bench.state(2), gaps(seed))
    disk.install(monkeypatch)
    for number in range(2):
        federation.client(number)
    seen, ends = [], 0
    while True:
        client = federation.client(2)
        try:
            client.result()
            break
        except DiskFull as error:
            # At its start it ends, and whoever started it starts it again.
            ends += 1
            assert "cannot be" in error.message and ends < 20
        finally:
            seen += [event.name for event in client.events]
    assert disk.refused.total() > 5 and "disk_full" in seen
    assert {federation.bench.model(number) for number in range(3)} == {merged().model}


@pytest.mark.parametrize("seed", MORE)
def test_a_key_authority_goes_on(found, revealing, monkeypatch, seed):
    federation = found(plan_of("bfv", key_holder="authority"))
    keys = AuthorityFolder(federation.bench.workspace.folder / "keys")
    disk = Disk(keys.private, gaps(seed))
    disk.install(monkeypatch)
    events = revealing(federation)
    federation.start_all()
    check_against_one_process(federation)
    assert disk.refused.total() > 5 and "disk full" in {event.name for event in events}
    assert {federation.bench.model(n) for n in range(3)} == {merged().model}
    opened = [event.round for event in events if event.name == "sum revealed"]
    assert opened == [published.round for published in federation.published()]
