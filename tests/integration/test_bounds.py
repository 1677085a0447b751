"""Clients that are unfit, send too much or have a full disk."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filling_disk import Disk
from world.bench import N_ITEMS, Bench, merged, plan_of
from world.clock import poll
from world.links import Passing
from world.parties import Client, check_against_one_process
from world.plans import params

from fedrec.data import Catalogue
from fedrec.durable import DiskFull
from fedrec.errors import (
    CatalogueMismatch,
    FedrecError,
    PlanMismatch,
    RefusedError,
    SumOutOfBounds,
    VersionMismatch,
)
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.training.round_vectors import RoundVectors
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_authority.opening.sum_opening import _UNFIT
from fedrec_client.state.private_store import PrivateStore
from fedrec_server.app import Coordinator
from fedrec_server.federation import PublicCatalogue
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


MEMBERS = range(3)


class FromTheFuture(Passing):
    """Meets a coordinator of the next major version."""

    def federation(self, client_id):
        return replace(self.link.federation(client_id), protocol_version="1.0")


def test_refused_at_the_door(found, tmp_path):
    federation = found(plan_of("none", 3, total=1), 7)
    catalogue = Catalogue.of([f"i{number}" for number in range(N_ITEMS)])
    catalogue.save(tmp_path / "other.csv")
    unfit: list[tuple[Client, type[FedrecError]]] = [
        (federation.client(3, data__catalogue=str(tmp_path / "other.csv")), CatalogueMismatch),
        (federation.client(4, algorithm__learning_rate=0.25), PlanMismatch),
        (federation.client(6, wrap=FromTheFuture), VersionMismatch),
    ]
    members = [federation.client(number) for number in MEMBERS]
    for client, error in unfit:
        failure = client.failure()
        assert type(failure) is error, repr(failure)
        assert failure.exit_code == 5
        assert failure.remedy
    for member in members:
        assert member.result().reason == "all rounds are published"


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


def test_a_coordinator_is_asked(tmp_path):
    bench = Bench.make(tmp_path, plan_of("none", 3, "ease"))
    settings = bench.coordinator_settings()
    assert settings.data.catalogue is not None
    catalogue = PublicCatalogue.load(Path(settings.data.catalogue))
    spec = RoundVectors.of(bench.plan, N_ITEMS)
    with pytest.raises(RefusedError, match="the coordinator would read which pairs"):
        Coordinator.from_settings(settings, catalogue, spec)
    Coordinator.from_settings(settings, catalogue, spec, accept_exposure=True)


def test_a_client_is_asked_whatever_the_coordinator_accepted(found):
    federation = found(plan_of("none", 3, "ease"), 3)
    failure = federation.client(0, accept_exposure=False).failure()
    assert type(failure) is RefusedError
    assert failure.exit_code == 5
    assert "--accept-exposure" in failure.remedy
