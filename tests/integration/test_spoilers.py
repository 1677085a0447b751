"""Clients that spoil a sum, and sums that are handed out.

Six clients are two cells. All six are in the first two rounds: each upload waits for the others.
"""

import shutil
import threading
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import structlog
from integration.test_recovering import recovered, state_of
from world.bench import N_ITEMS, plan_of
from world.clock import DEADLINE_SECONDS, poll
from world.federation import rotate
from world.links import Passing
from world.parties import AuthorityProcess, check_against_one_process, operators_link
from world.plans import params

from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_authority_key
from fedrec.ids import RoundId
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_server.rounds.endings import OUT_OF_BOUNDS, REFUSED


def together(n_clients, rounds):
    """Hold the updates of some rounds until all clients have one."""
    all_here = threading.Barrier(n_clients, timeout=DEADLINE_SECONDS)

    class Held(Passing):
        def submit_update(self, header, payload):
            if header.round in rounds:
                all_here.wait()
            return self.link.submit_update(header, payload)

    def wrap(link):
        return Held(link)

    return wrap


def cells(bench):
    """Return the clients of each cell, by number."""
    numbers = {Identity.load(bench.state(n)).client_id: n for n in range(bench.n_clients)}
    roster = AuthorityFolder(bench.workspace.folder / "keys").last_roster
    return {
        cell.id: frozenset(numbers[one] for one in cell.members) for cell in roster.partition.in_use
    }


def begun(found, spoiler, protection="bfv", *, n_clients=6, least=1, **rounds):
    """Start a federation whose last cell has a spoiler; return the others' numbers.

    Args:
        least: users who must hold an item; with one no sum needs more cells than one.
    """
    plan = plan_of(protection, n_clients=3, key_holder="authority", **rounds)
    rules = plan.federation.model_copy(update={"minimum_item_users": least})
    federation = found(plan.model_copy(update={"federation": rules}), n_clients)
    *others, last = cells(federation.bench).values()
    spoiler.folder = federation.bench.state(min(last))
    return federation, frozenset().union(*others)


@pytest.mark.parametrize("protection", params("bfv", long=["ckks", "paillier"]))
def test_the_others_publish_the_same_bits_without_its_cell(found, revealing, spoiler, protection):
    federation, good = begun(found, spoiler, protection)
    events = revealing(federation)
    federation.start_all(wrap=together(6, (1, 2)))
    sets = check_against_one_process(federation)
    assert sets == [frozenset(range(6)), *[good] * 4]
    published = federation.published()
    text = [found.statement.paused for found in published if found.statement is not None]
    assert text == [(), (2,), (2,), (2,), (2,)]
    assert [found.round for found in published] == [1, 2, 3, 4, 5], "no round was given up"
    (paused,) = [event for event in federation.journal() if event.kind == "cells paused"]
    assert (paused.round, paused.fields) == (2, {"cells": [2], "left_out": 3})
    assert [event.round for event in events if event.name == "cell paused"] == [2]
    for number, client in enumerate(federation.clients):
        outcome = client.wait_for("published", 2).detail
        seen = [event.detail for event in client.events if event.name == "cell_paused"]
        if number in good:
            assert (outcome, seen) == ("counted", [])
        else:
            assert outcome == "not_counted: cell_paused"
            assert len(seen) == 1 and "fedrec keys roster resume 2" in seen[0]


@pytest.mark.long
def test_three_cells_go_on_without_one_where_rare_items_are_not_trained(found, revealing, spoiler):
    """Two cells are left: more than the one that may be corrupt."""
    federation, good = begun(found, spoiler, n_clients=9, least=2)
    revealing(federation)
    federation.start_all(wrap=together(9, (1, 2)))
    assert check_against_one_process(federation) == [frozenset(range(9)), *[good] * 4]
    text = [found.statement.paused for found in federation.published() if found.statement]
    assert text == [(), (3,), (3,), (3,), (3,)]


def test_of_two_cells_none_can_be_spared_where_rare_items_are_not_trained(
    found, revealing, spoiler
):
    """One cell alone could be corrupt: the round is given up, and no client is paused."""
    federation, _ = begun(found, spoiler, least=2)
    revealing(federation)
    federation.start_all(wrap=together(6, (1, 2)))
    assert check_against_one_process(federation) == [frozenset(range(6))] * 5
    (given_up,) = [entry for entry in federation.journal() if entry.kind == "round abandoned"]
    assert (given_up.round, given_up.fields["reason"]) == (2, f"{REFUSED}: {OUT_OF_BOUNDS}")
    assert not [entry for entry in federation.journal() if entry.kind == "cells paused"]


@pytest.mark.long
def test_a_pause_outlives_restarts_and_ends_by_a_roster(found, spoiler):
    """Coordinator and authority are killed in the fourth round; then the cell is taken in again."""
    federation, good = begun(found, spoiler, total=4)
    bench = federation.bench
    all_six, go_on = together(6, (1, 2, 5, 6)), threading.Event()
    reached = threading.Semaphore(0)

    class Held(Passing):
        def submit_update(self, header, payload):
            if header.round == 4:
                reached.release()
                assert go_on.wait(2 * DEADLINE_SECONDS)
            return self.link.submit_update(header, payload)

    authority = AuthorityProcess(bench, federation.address)
    keys = AuthorityFolder(bench.workspace.folder / "keys")
    try:
        federation.start_all(wrap=lambda link: Held(all_six(link)))
        authority.wait_for("cell paused", 2)
        for _ in range(3):
            assert reached.acquire(timeout=DEADLINE_SECONDS)
        authority.kill()
        federation.stop_coordinator()
        federation.start_again()
        assert federation.coordinator.engine.run.state.rules.partition.cells[1].state == "paused"
        assert keys.paused == (2,)
        made = rotate(keys)
        assert [cell.state for cell in made.roster.partition.cells] == ["active", "paused"]
        assert keys.paused == (), "the roster says it now"
        rotate(keys, resume=2)
        authority.close()
        authority = AuthorityProcess(bench, federation.address)
        authority.wait_for("epoch delivered")
        go_on.set()
        sets = check_against_one_process(federation)
    finally:
        go_on.set()
        authority.close()
    all_clients = frozenset(range(6))
    assert sets == [all_clients, *[good] * 3, all_clients, all_clients]
    assert [found.epoch for found in federation.published()] == [1, 1, 1, 1, 3, 3]
    (seen,) = [event for event in federation.journal() if event.kind == "cells paused"]
    assert seen.round == 2


def test_a_coordinator_made_anew_knows_the_pause(found, revealing, spoiler):
    """No client of the cell is asked, so that no round waits for them in vain."""
    federation, good = begun(found, spoiler)
    revealing(federation)
    all_six, go_on = together(6, (1, 2)), threading.Event()
    reached = threading.Semaphore(0)

    class Held(Passing):
        def submit_update(self, header, payload):
            if header.round == 4:
                reached.release()
                assert go_on.wait(2 * DEADLINE_SECONDS)
            return self.link.submit_update(header, payload)

    try:
        federation.start_all(wrap=lambda link: Held(all_six(link)))
        for _ in range(3):
            assert reached.acquire(timeout=DEADLINE_SECONDS)
        federation.stop_coordinator()
        shutil.rmtree(state_of(federation))
        assert recovered(federation).round == 3
        cells_now = federation.coordinator.engine.run.state.rules.partition.cells
        assert [cell.state for cell in cells_now] == ["active", "paused"]
    finally:
        go_on.set()
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    assert not [entry for entry in federation.journal() if entry.kind == "round abandoned"]
    for number in (3, 4, 5):
        record = federation.coordinator.engine.run.store.published(RoundId(number))
        assert record is not None and record.statement is not None
        assert record.statement.paused == (2,)
        assert len(record.contributions) == len(good)


@pytest.mark.parametrize("protection", params("bfv", long=["masks"]))
def test_a_single_cell_stalls_and_goes_on_by_itself(found, revealing, spoiler, protection):
    """Three rounds are given up and every client is told; no client is paused."""
    holder = {"key_holder": "authority"} if protection == "bfv" else {}
    federation = found(plan_of(protection, n_clients=3, **holder), 3)
    spoiler.folder, spoiler.rounds = federation.bench.state(1), 3
    if holder:
        revealing(federation)
    federation.start_all()
    link = operators_link(federation.bench, federation.address)
    try:
        poll(lambda: "Stalled" in link.status().waits_for)
        waits = link.status().waits_for
    finally:
        link.close()
    reason = f"{REFUSED}: {OUT_OF_BOUNDS}" if holder else OUT_OF_BOUNDS
    assert f"Stalled: 3 rounds in a row were abandoned, the last because {reason}" in waits
    for client in federation.clients:
        assert client.wait_for("round_refused", 4).detail == reason
    federation.clock.jump(3_600.0)
    assert check_against_one_process(federation) == [frozenset(range(3))] * 5
    given_up = [e for e in federation.journal() if e.kind == "round abandoned"]
    assert [(e.round, e.fields["reason"]) for e in given_up] == [(n, reason) for n in (2, 3, 4)]
    assert not [e for e in federation.journal() if e.kind == "cells paused"]


@pytest.mark.parametrize("algorithm", params("fedmf", long=["ease"]))
def test_what_the_coordinator_can_read_is_refused_one_by_one(found, spoiler, algorithm):
    """The round goes on without it, and the log names whose it was."""
    federation = found(plan_of("none", n_clients=3, algorithm=algorithm), 4)
    spoiler.folder, spoiler.rounds = federation.bench.state(3), 1
    with structlog.testing.capture_logs() as lines:
        federation.start_all(wrap=together(4, (1, 2)))
        sets = check_against_one_process(federation)
    others, all_clients = frozenset(range(3)), frozenset(range(4))
    kinds = [found.kind for found in federation.published()]
    refused = [line for line in lines if line["event"] == "update refused"]
    name = federation.coordinator.engine.run.federation.keys.roster
    label = name.member(Identity.load(federation.bench.state(3)).client_id).label
    assert [(line["client"], line["round"]) for line in refused] == [(label, 2)]
    seen = federation.clients[3].wait_for("round_refused", 2)
    assert seen.detail.startswith("this client's update has values that no honest client sends")
    if algorithm == "fedmf":
        assert kinds == ["count", "train", "train", "train", "evaluate"]
        assert sets == [all_clients, *[others] * 4], "it is left alone for a while"
    else:
        # Divided by what four counted, the sum of three would be wrong: the three count again.
        assert kinds[:2] == ["count", "count"]
        assert sets == [all_clients, *[others] * (len(sets) - 1)]


Sent = dict[RoundId, list[bytes]]


class Overheard(Passing):
    """Keeps what a client sends."""

    def __init__(self, link, sent, lock):
        super().__init__(link)
        self._sent, self._lock = sent, lock

    def submit_update(self, header, payload):
        with self._lock:
            self._sent[header.round].append(payload)
        return self.link.submit_update(header, payload)


def test_a_published_ciphertext_sum_is_not_the_plain_product(found):
    """Else whoever has some of the updates could try which ones are in it."""
    federation = found(plan_of("paillier/packed-2048", total=1))
    sent: Sent = defaultdict(list)
    lock = threading.Lock()
    for client in federation.start_all(wrap=lambda link: Overheard(link, sent, lock)):
        assert client.result().reason == "all rounds are published"
    bench = federation.bench
    epoch = KeyEpoch.load(bench.workspace.epoch)
    identity = Identity.load(bench.state(0))
    settings = bench.client_settings(0, federation.address)
    _, secrets = open_epoch(
        roster_json=epoch.roster.to_json(),
        server_context=epoch.server_context,
        wrapped=epoch.secrets_for(identity.client_id),
        identity=identity,
        pinned_authority_key=read_authority_key(Path(settings.client.authority_key)),
    )
    planned = protection_of(bench.plan, N_ITEMS)
    whole = planned.member(epoch.server_context, secrets.protection_secret)
    metrics = federation.metrics()
    rounds = federation.published()
    assert len(rounds) == 3
    for published in rounds:
        layout = Layout.of(bench.plan, ROW_STEP)
        if published.kind == "count":
            layout = Layout.counting(bench.plan, N_ITEMS)
        over = planned.over(layout.vector_spec)
        product = over.accumulator(epoch.server_context)
        for payload in sent[published.round]:
            product.add(payload)
        plain = product.finish()
        assert published.blob != plain and len(published.blob) == len(plain)
        revealed = whole.over(over).reveal(published.blob, 3)
        assert np.array_equal(revealed, whole.over(over).reveal(plain, 3))
        assert np.array_equal(revealed[layout.metrics_slice], metrics[published.round])
