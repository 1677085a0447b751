"""Members join and leave while every client runs, and nothing is restarted for it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from world.bench import accepted, compute, federal, invite, never_met, plan_of
from world.clock import DEADLINE_SECONDS
from world.federation import keep, rotate
from world.held_steps import until_others_are_done
from world.links import Gate
from world.parties import operators_link
from world.plans import params

from fedrec.errors import NotInRoster
from fedrec.identity.identity import Identity
from fedrec_authority.delivery import AuthorityEvent, Delivery
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_server.run.presence import LIVE_SECONDS


class Authorities:
    """The data owners' side of a test's federation."""

    def __init__(self, federation):
        self.folder = AuthorityFolder(federation.bench.workspace.folder / "keys")
        self.link = operators_link(federation.bench, federation.address)
        self.events: list[AuthorityEvent] = []
        self.delivery = Delivery(self.folder, self.link, self.events.append)

    def remove(self, fingerprint):
        identity = self.folder.find_member(fingerprint)
        keep(self.folder, self.folder.membership.without_member(identity.client_id, 5))

    def rotate(self):
        made = rotate(self.folder)
        assert self.delivery.look()
        return made

    def names(self):
        return [event.name for event in self.events]


def check_members(federation, numbers):
    """Compare models and metrics with the same accepted sets in one process."""
    bench = federation.bench
    rounds = accepted(bench, federation.published(numbers[0]))
    wanted = compute(bench.plan, bench.users(), rounds)
    assert federal(federation.metrics()) == federal(wanted.metrics)
    for number in numbers:
        assert bench.model(number) == wanted.model
    return [played.clients for played in rounds]


PATIENT = {"masks": {"mask_step_seconds": 60.0}}
"""Settings of a plan whose steps wait for whoever is held."""


@pytest.mark.parametrize(
    "held",
    params(
        ("bfv", "vector"),
        ("masks", "signature"),
        long=[("none", "vector"), *(("masks", step) for step in ("keys", "shares", "answer"))],
    ),
    ids=" ".join,
)
def test_a_client_joins_while_a_round_is_in_progress(found, held):
    """The round ends in its own epoch with all its clients. The next one is of the new."""
    protection, step = held
    plan = plan_of(protection, 3, **PATIENT.get(protection, {}))
    federation = found(plan, 4, prepare=lambda bench: never_met(bench, 3))
    owners = Authorities(federation)
    gate, until_it_is_there = Gate(3, step), Gate(4, "keys" if protection == "masks" else "vector")
    clients = [federation.client(0, wrap=lambda link: gate(until_it_is_there(link)))]
    clients += [federation.client(1), federation.client(2)]
    try:
        invitation = invite(federation.bench)
        # Under masks a single joiner is summed with others at once as a guest only.
        joiner = federation.client(3, client__invitation=invitation, client__when_away="go_on")
        waits = joiner.wait_for("waiting_to_join")
        assert gate.reached.wait(DEADLINE_SECONDS)
        assert owners.delivery.look()
        (admitted,) = [event for event in owners.events if event.name == "member admitted"]
        assert admitted.client_id in waits.detail
        assert admitted.client_id == Identity.load(federation.bench.state(3)).client_id
        made = owners.folder.newest
        # The round that was in progress ends in its own epoch, with every client's update.
        assert owners.link.status().next_epoch == made.roster.epoch
        assert owners.link.status().epoch == made.roster.epoch - 1
        gate.opened.set()
        # Nothing is published in the new epoch yet: two old members say which model they have.
        assert joiner.wait_for("snapshot_taken").round == 3
    finally:
        gate.opened.set()
        until_it_is_there.opened.set()
    for client in (*clients, joiner):
        assert client.result().reason == "all rounds are published"
    counted = check_members(federation, [0, 1, 2, 3])
    assert counted[2] == {0, 1, 2}
    assert 3 in counted[-1]
    kinds = [event.kind for event in federation.journal()]
    assert "round abandoned" not in kinds
    assert kinds.count("key epoch began") == 1
    assert [round_.epoch for round_ in federation.published()] == [2, 2, 2, 3, 3]
    assert owners.delivery.look() and "epoch began" in owners.names()
    engine = federation.coordinator.engine
    assert engine.applications.waiting(engine.run.federation.keys.roster) == []
    assert not Path(invitation).exists(), "it is used"
    for client in clients:
        assert "epoch_changed" in {event.name for event in client.events}


@pytest.mark.parametrize(
    "held",
    params(
        ("bfv", "fedrap", "vector"),
        ("masks", "fedmf", "vector"),
        long=[
            ("bfv", "fedmf", "vector"),
            *(("masks", "fedmf", step) for step in ("keys", "shares")),
        ],
    ),
    ids=" ".join,
)
def test_a_client_is_removed_while_a_round_is_in_progress(found, held):
    """The round is abandoned, and moves nothing: fedrap's steps count published ones."""
    protection, algorithm, step = held
    federation = found(plan_of(protection, 3, algorithm, **PATIENT.get(protection, {})), 4)
    owners = Authorities(federation)
    gate = Gate(3, step)
    clients = [federation.client(0, wrap=gate)]
    clients += [federation.client(number) for number in (1, 2)]
    removed = federation.client(3)
    with gate:
        until_others_are_done(federation, gate, step)
        removed_id = Identity.load(federation.bench.state(3)).client_id
        owners.remove(removed_id[:20])
        made = owners.rotate()
        assert owners.link.status().epoch == made.roster.epoch == 2
        assert isinstance(removed.failure(), NotInRoster)
    for client in clients:
        assert client.result().reason == "all rounds are published"
    counted = check_members(federation, [0, 1, 2])
    assert all(clients == {0, 1, 2} for clients in counted[2:])
    (abandoned,) = [e for e in federation.journal() if e.kind == "round abandoned"]
    assert (abandoned.round, abandoned.fields["reason"]) == (3, "the key epoch changed")
    assert [round_.epoch for round_ in federation.published()] == [1, 1, 2, 2, 2]
    again = federation.client(3)
    assert isinstance(again.failure(), NotInRoster)
    assert "waiting_to_join" not in {event.name for event in again.events}


def test_a_client_that_missed_two_rotations_takes_a_snapshot(found):
    federation = found(plan_of("bfv", 3, total=4), 4)
    owners = Authorities(federation)
    gates = {number: Gate(number) for number in (2, 3, 4)}

    def gated(link):
        for gate in gates.values():
            link = gate(link)
        return link

    away = federation.client(3)
    clients = [federation.client(0, wrap=gated), federation.client(1), federation.client(2)]
    try:
        # Each round is held until the next epoch is there, so that it is the last of its own.
        assert gates[2].reached.wait(DEADLINE_SECONDS)
        away.wait_for("sent", 2)
        away.stop()
        # It counts as present for a while, and a round would wait for it.
        federation.clock.jump(LIVE_SECONDS + 1)
        for number in (2, 3):
            assert gates[number].reached.wait(DEADLINE_SECONDS)
            owners.rotate()
            assert owners.link.status().next_epoch == number
            gates[number].opened.set()
        assert gates[4].reached.wait(DEADLINE_SECONDS)
        assert owners.link.status().epoch == 3
        back = federation.client(3)
        assert back.wait_for("snapshot_taken").round == 3
    finally:
        for gate in gates.values():
            gate.opened.set()
    for client in (*clients, back):
        assert client.result().reason == "all rounds are published"
    bench = federation.bench
    assert len({bench.model(number) for number in range(4)}) == 1
    assert [round_.epoch for round_ in federation.published()][:3] == [1, 1, 2]


def test_the_authority_as_a_process(found):
    """It lists who applies, brings what `fedrec keys roster` makes, and ends with Ctrl-C."""
    federation = found(plan_of("none", 3), 4, prepare=lambda bench: never_met(bench, 3))
    keys = federation.bench.workspace.folder / "keys"
    gate = Gate(2)
    members = [federation.client(0, wrap=gate), federation.client(1), federation.client(2)]
    command = [sys.executable, "-m", "fedrec", "keys"]
    options = [federation.address, "--into", keys, "--every-seconds", "0.2", "--json"]
    process = subprocess.Popen(
        [*command, "authority", "run", *options], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        invitation = invite(federation.bench, confirm=True)
        joiner = federation.client(3, client__invitation=invitation)
        seen = []
        while not seen or seen[-1]["name"] != "applicant":
            seen.append(json.loads(process.stdout.readline()))
        short = seen[-1]["client_id"][:16]
        added = [*command, "roster", "admit", short, "--into", str(keys)]
        assert subprocess.run(added, check=True, capture_output=True).returncode == 0
        while seen[-1]["name"] != "epoch delivered":
            seen.append(json.loads(process.stdout.readline()))
        gate.opened.set()
        while seen[-1]["name"] != "epoch began":
            seen.append(json.loads(process.stdout.readline()))
        assert seen[-1]["epoch"] == 3
        assert joiner.wait_for("joined")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 130
    finally:
        gate.opened.set()
        process.kill()
        process.wait()
        process.stdout.close()
    for member in members:
        assert member.result().reason == "all rounds are published"
