"""Federations under masks, and their key rotation."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from integration.test_changing_members import Authorities, check_members
from world.bench import plan_of
from world.clock import poll
from world.held_steps import (
    N_CLIENTS,
    Gate,
    let_it_drop_out,
    phase_in,
    phase_of,
    until_others_are_done,
    whole_federation,
    without_cell_of,
)
from world.links import Passing
from world.parties import check_against_one_process
from world.plans import params

from fedrec.errors import NotInRoster, RoundClosed
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.protection.masks import KeyList
from fedrec.protection.masks.keys import RoundKeys
from fedrec.protection.masks.messages import (
    KEY_LIST,
    key_list_from_bytes,
    signatures_from_bytes,
    signatures_to_bytes,
)
from fedrec.wire.messages import (
    StepTask,
    Task,
)


@pytest.mark.parametrize("step", params("vector", long=["shares", "signature"]))
def test_the_others_go_on_without_a_client_that_drops_out(found, step):
    gate = Gate(3, step)
    federation = whole_federation(found, {4: gate}, 3)
    with gate:
        let_it_drop_out(federation, gate, step)
        poll(lambda: federation.coordinator.engine.run.state.published >= 3)
    counted = check_against_one_process(federation)
    # Whose vector arrived is in the sum, whether it stays or not.
    left = without_cell_of(federation, 4)
    assert counted[2] == (left if step != "signature" else set(range(N_CLIENTS)))


def test_answers_of_fewer_are_enough_after_a_while(found):
    gate = Gate(2, "answer")
    federation = whole_federation(found, {4: gate}, 2)
    with gate:
        let_it_drop_out(federation, gate, "answer")
        poll(lambda: federation.coordinator.engine.run.state.published >= 2)
    counted = check_against_one_process(federation)
    assert counted[1] == set(range(N_CLIENTS))


def test_a_vector_after_its_client_was_declared_dropped_is_refused(found):
    """The coordinator may hold the masks of a client that dropped out: its vector must not come.

    What it can take off then are the masks in common with others; the client's own stays.
    """
    refused: list[Exception] = []
    gate = Gate(3, "vector")

    def wrap(link):
        class Noting(Passing):
            def submit_update(self, header, payload):
                try:
                    return self.link.submit_update(header, payload)
                except RoundClosed as error:
                    refused.append(error)
                    raise

        return gate(Noting(link))

    federation = whole_federation(found, {4: wrap}, 3)
    with gate:
        let_it_drop_out(federation, gate, "vector")
        poll(lambda: phase_of(federation) != "masking")
    counted = check_against_one_process(federation)
    assert counted[2] == without_cell_of(federation, 4)
    assert len(refused) == 1


class Falsifying(Passing):
    """Changes what one client is given for a step of one round."""

    def __init__(self, link, step, change):
        super().__init__(link)
        self._step, self._change = step, change

    def masks(self, client_id, run, round_id, step):
        raw = self.link.masks(client_id, run, round_id, step)
        return self._change(raw) if (step, round_id) == (self._step, 2) else raw


def audit_of(bench, number):
    """Return the events in a client's audit log."""
    path: Path = bench.state(number) / AUDIT_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["event"] for line in lines]


def swapped_keys(raw):
    """Return a list of keys in which the coordinator put one of its own."""
    keys = key_list_from_bytes(raw).keys
    mask_key, share_key = RoundKeys.create().public_halves()
    swapped = replace(keys[0], mask_key=mask_key, share_key=share_key)
    return KEY_LIST.to_bytes(KeyList((swapped, *keys[1:])))


def one_less(raw):
    """Return survivors without the first of them."""
    return bytes([raw[0] & (raw[0] - 1), *raw[1:]])


def of_others(raw):
    """Return signatures over what other clients were shown; a client doesn't look at its own."""
    return signatures_to_bytes(dict.fromkeys(signatures_from_bytes(raw), bytes(64)))


@pytest.mark.parametrize(
    "lie",
    params(
        ("shares", swapped_keys, "mask_keys_refused"),
        ("answer", of_others, "split_view"),
        long=[
            ("signature", one_less, "partial_cell"),
            ("answer", lambda raw: b"", "shares_refused"),
            ("vector", lambda raw: raw[:-1], "mask_inbox_refused"),
        ],
    ),
    ids=lambda lie: lie[-1],
)
def test_a_client_that_is_told_something_else_gives_nothing(found, lie):
    """Scenarios 6 and 7 over the wire: the lie costs the round one cell, and is written down."""
    (step, change, event), victim = lie, 4
    federation = whole_federation(found, {victim: lambda link: Falsifying(link, step, change)}, 2)
    bench = federation.bench
    poll(lambda: event in audit_of(bench, victim))
    engine = federation.coordinator.engine

    def stuck():
        round_ = engine.run.state.current
        if engine.run.state.published >= 2:
            return True
        if round_ is None or round_.number != 2 or round_.phase != phase_in(federation, step):
            return False
        here = round_.accepted if step == "vector" else round_.sent(step)
        return len(here) >= N_CLIENTS - 1

    poll(stuck)
    federation.clock.jump(61)
    counted = check_against_one_process(federation)
    with_victim = step in ("signature", "answer")
    left = set(range(N_CLIENTS)) if with_victim else without_cell_of(federation, victim)
    assert counted[1] == left
    assert audit_of(bench, victim) == [event]
    assert all(not audit_of(bench, number) for number in range(N_CLIENTS) if number != victim)


class Repeating(Passing):
    """Asks for steps before their time, and again with other survivors.

    Attributes:
        sent: by step, the bodies that left the client in round 2.
        asked: what the client fetched for its signature.
    """

    def __init__(self, link):
        super().__init__(link)
        self.sent: dict[str, list[bytes]] = {}
        self.asked = 0
        self._tricks: list[str] = ["answer", "signature", "keys"]
        self._task: Task | None = None

    def next_task(self, *args, **how):
        if self._task is not None and self._tricks:
            step = self._tricks.pop(0)
            return replace(self._task, task=StepTask(round=RoundId(2), step=step, epoch=1))
        found = self.link.next_task(*args, **how)
        task = found.task
        if isinstance(task, StepTask) and (task.round, task.step) == (2, "vector"):
            # From here on wrong steps come first.
            self._task = found
        return found

    def masks(self, client_id, run, round_id, step):
        raw: bytes = self.link.masks(client_id, run, round_id, step)
        if (step, round_id) == ("signature", 2):
            self.asked += 1
        return raw if self.asked < 2 else one_less(raw)

    def submit_masks(self, message):
        if message.round == 2:
            self.sent.setdefault(message.step, []).append(message.body)
        if message.round == 2 and message.step == "signature" and len(self.sent["signature"]) == 1:
            # Again, now that it has signed; it must not even look at the new set.
            self._tricks.append("signature")
        found: bool = self.link.submit_masks(message)
        return found


def test_a_client_takes_steps_in_order_and_signs_one_set(found):
    federation = found(plan_of("masks", 3), 3)
    link: list[Repeating] = []

    def wrap(inner):
        link.append(Repeating(inner))
        return link[0]

    federation.client(0, wrap=wrap)
    for number in (1, 2):
        federation.client(number)
    poll(lambda: federation.coordinator.engine.run.state.published >= 2)
    counted = check_against_one_process(federation)
    assert counted[1] == {0, 1, 2}
    assert link[0].asked == 1
    assert len(link[0].sent["signature"]) >= 2
    assert all(len(set(bodies)) == 1 for bodies in link[0].sent.values())
    assert audit_of(federation.bench, 0) == []


ROUND = 3


@pytest.mark.parametrize("step", params("signature", long=["answer"]))
def test_a_member_is_removed_once_survivors_are_told(found, step):
    """Its vector is in the sum already: without it the next sum would give its update away."""
    federation = found(plan_of("masks", 3, mask_step_seconds=60.0), 4)
    owners, gate = Authorities(federation), Gate(ROUND, step)
    clients = [federation.client(0, wrap=gate)]
    clients += [federation.client(number) for number in (1, 2)]
    removed = federation.client(3)
    with gate:
        until_others_are_done(federation, gate, step)
        owners.remove(Identity.load(federation.bench.state(3)).client_id[:20])
        made = owners.rotate()
        status = owners.link.status()
        assert (status.epoch, status.next_epoch) == (1, made.roster.epoch)
    for client in clients:
        assert client.result().reason == "all rounds are published"
    assert isinstance(removed.failure(), NotInRoster)
    counted = check_members(federation, [0, 1, 2])
    assert [len(clients) for clients in counted[ROUND - 1 :]] == [4, 3, 3]
    assert "round abandoned" not in kinds_of(federation)
    assert [round_.epoch for round_ in federation.published()] == [1, 1, 1, 2, 2]


def kinds_of(federation):
    return [event.kind for event in federation.journal()]
