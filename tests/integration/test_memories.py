"""Folders that are older than the one they belong to, and two copies of one: rule R13."""

import json
import shutil
from pathlib import Path

import pytest
from world.bench import plan_of
from world.clock import DEADLINE_SECONDS, poll
from world.links import Gate
from world.parties import check_against_one_process, operators_link
from world.plans import params

from fedrec.errors import FolderIsOld, SecondCopy, StateWentBack
from fedrec.follower.database import STATE_FILE
from fedrec.follower.round_journal import AUDIT_FILE

TOLD = {"audit.jsonl", "client-log.jsonl", "lock"}
"""What a client that refuses to go on adds to its folder."""


def content(folder):
    """Return what a folder holds, without what is only told."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in TOLD]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class CopyAfter:
    """Copies a folder when its client has heard of a published round."""

    def __init__(self, folder, round_id):
        self.path = folder.with_name(f"{folder.name} after {round_id}")
        self._folder, self._round = folder, round_id

    def __call__(self, event):
        if (event.name, event.round) == ("published", self._round):
            shutil.copytree(self._folder, self.path)


def swap(folder, other):
    """Put another folder in one's place; return where the first one is now."""
    aside = folder.with_name(f"{folder.name} aside")
    folder.rename(aside)
    shutil.copytree(other, folder)
    return aside


def audited(folder):
    """Return the codes of what a client refused."""
    lines = (folder / AUDIT_FILE).read_text().splitlines()
    return [json.loads(line)["code"] for line in lines]


@pytest.mark.parametrize("protection", params("bfv", long=["none"]))
def test_client_folder_back(found, protection):
    """An older copy of a folder is told from the newest one, which then goes on."""
    federation = found(plan_of(protection))
    state, until_it_is_back = federation.bench.state(2), Gate(4)
    before = CopyAfter(state, 1)
    others = [federation.client(0, wrap=until_it_is_back), federation.client(1)]
    client = federation.client(2, on_event=before)
    with until_it_is_back:
        client.wait_for("sent", 3)
        client.wait_for("published", 3)
        client.stop()
        # Of its database alone, whose files are those of a later round.
        newest_rows = (state / STATE_FILE).read_bytes()
        shutil.copyfile(before.path / STATE_FILE, state / STATE_FILE)
        mixed = content(state)
        error = federation.client(2).failure()
        assert (
            type(error) is StateWentBack and "the newest copy of the whole folder" in error.remedy
        )
        assert content(state) == mixed
        (state / STATE_FILE).write_bytes(newest_rows)
        newest = swap(state, before.path)
        old = content(state)
        back = federation.client(2)
        error = back.failure()
        assert type(error) is FolderIsOld and error.exit_code != 0
        assert "delete" not in str(error) and "replace this client" in error.remedy
        assert content(state) == old
        assert audited(state) == ["folder_is_old_or_copied"]
        shutil.rmtree(state)
        newest.rename(state)
        federation.clients[:] = [*others, federation.client(2)]
    counted = check_against_one_process(federation)
    assert all(clients == {0, 1, 2} for clients in counted)


def test_client_folder_copied(found, tmp_path):
    """The second of two copies ends once the other was heard; nothing of it is counted."""
    federation = found(plan_of("bfv"))
    copy = CopyAfter(federation.bench.state(2), 2)
    gate = Gate(4)
    federation.client(0, wrap=gate)
    federation.client(1)
    federation.client(2, on_event=copy).wait_for("sent", 3)
    second = federation.client(2, client__state=copy.path)
    federation.clients.remove(second)
    with gate:
        error = second.failure()
        assert type(error) is FolderIsOld and "another copy runs" in error.message
    assert not [event for event in second.events if event.name == "sent"]
    check_against_one_process(federation)


def test_two_copies_that_answer_the_same_round(found):
    federation = found(plan_of("bfv"))
    copy, gate, last = CopyAfter(federation.bench.state(2), 1), Gate(2), Gate(3)
    others = [federation.client(0, wrap=last), federation.client(1)]
    first = federation.client(2, on_event=copy, wrap=gate)
    try:
        # It has signed its update of round 2 and is slow to send it; the copy is faster.
        assert gate.reached.wait(DEADLINE_SECONDS)
        second = federation.client(2, client__state=copy.path)
        second.wait_for("sent", 2)
        gate.opened.set()
        assert type(first.failure()) is SecondCopy
    finally:
        gate.opened.set()
        last.opened.set()
    assert "second_copy" in audited(federation.bench.state(2))
    for client in (*others, second):
        assert client.result().reason == "all rounds are published"
    shutil.rmtree(federation.bench.state(2))
    copy.path.rename(federation.bench.state(2))
    federation.clients[:] = [*others, second]
    check_against_one_process(federation)


def coordinators_folder(federation):
    return Path(federation.bench.coordinator_settings().coordinator.state)


@pytest.mark.parametrize("last", params(3, long=[4]))
def test_coordinator_folder_back(found, revealing, last):
    """Members wait for a coordinator that was set back, and show it what it forgot.

    Also where that is only the round that the older folder still collects, which no client sends
    again, and the authority is away.
    """
    federation = found(plan_of("bfv", key_holder="authority"))
    revealing(federation)
    gates = [Gate(3), Gate(last + 1)]
    clients = [federation.client(0, wrap=lambda link: gates[1](gates[0](link)))]
    clients += [federation.client(1), federation.client(2)]
    folder = coordinators_folder(federation)
    try:
        clients[1].wait_for("sent", 3)
        federation.stop_coordinator()
        older = folder.with_name("older")
        shutil.copytree(folder, older)
        federation.start_again()
        gates[0].opened.set()
        for client in clients:
            client.wait_for("published", last)
        revealing.stop()  # type: ignore[attr-defined]  # see the fixture
        federation.stop_coordinator()
        newest = swap(folder, older)
        federation.start_again()
        run = federation.coordinator.engine.run
        poll(run.halted.is_set)
        assert run.problem is not None and f"A member has round {last}" in run.problem.message
        for client in clients[1:]:
            seen = client.wait_for("coordinator_went_back")
            assert "waits and keeps what it has" in seen.detail
        state = federation.coordinator.engine.run.state
        assert (state.published, state.abandoned) == (2, 0), "not at the deadline of a round"
        revealing(federation)
        federation.stop_coordinator()
        shutil.rmtree(folder)
        newest.rename(folder)
        federation.start_again()
    finally:
        for gate in gates:
            gate.opened.set()
    check_against_one_process(federation)


@pytest.mark.parametrize("protection", params("bfv", long=["none"]))
def test_an_older_copy_of_the_same_round_goes_on(found, protection):
    """What was acknowledged and then lost, of a round that was not published, is sent again."""
    federation = found(plan_of(protection))
    gates = [Gate(2), Gate(2)]
    clients = [federation.client(number, wrap=gate) for number, gate in enumerate(gates)]
    clients.append(federation.client(2))
    folder = coordinators_folder(federation)
    try:
        clients[2].wait_for("sent", 2)
        for gate in gates:
            assert gate.reached.wait(DEADLINE_SECONDS)
        federation.stop_coordinator()
        older = folder.with_name("older")
        shutil.copytree(folder, older)
        federation.start_again()
        gates[1].opened.set()
        clients[1].wait_for("sent", 2)
        federation.stop_coordinator()
        swap(folder, older)
        federation.start_again()
        clients[1].wait_for("forgotten", 2)
        gates[0].opened.set()
    finally:
        for gate in gates:
            gate.opened.set()
    counted = check_against_one_process(federation)
    assert all(clients == {0, 1, 2} for clients in counted)


def test_members_wait_where_no_authority_signs(found):
    """Without a key authority there is no word to show: members wait, and say so."""
    federation = found(plan_of("none"))
    gates = [Gate(2), Gate(4)]
    clients = [federation.client(0, wrap=lambda link: gates[1](gates[0](link)))]
    clients += [federation.client(1), federation.client(2)]
    folder = coordinators_folder(federation)
    try:
        clients[1].wait_for("sent", 2)
        federation.stop_coordinator()
        older = folder.with_name("older")
        shutil.copytree(folder, older)
        federation.start_again()
        gates[0].opened.set()
        clients[1].wait_for("sent", 4)
        federation.stop_coordinator()
        newest = swap(folder, older)
        federation.start_again()
        for client in clients[1:]:
            client.wait_for("coordinator_went_back")
        link = operators_link(federation.bench, federation.address)
        try:
            text = link.status().waits_for
        finally:
            link.close()
        assert "this folder ends with round 1" in text and "`fedrec coordinator recover`" in text
        assert "by itself" not in text
        assert not federation.coordinator.engine.run.halted.is_set()
        federation.stop_coordinator()
        shutil.rmtree(folder)
        newest.rename(folder)
        federation.start_again()
    finally:
        for gate in gates:
            gate.opened.set()
    check_against_one_process(federation)
