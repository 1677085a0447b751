"""Members join and leave while a round under masks is open, in every one of its steps."""

from __future__ import annotations

import pytest
from integration.support.bench import invite, never_met, plan_of
from integration.support.links import DEADLINE_SECONDS
from integration.support.masked import Gate, until_others_are_done
from integration.support.parties import Federation
from integration.test_changing_members import Authorities, check_against_one_process

from fedrec.errors import NotInRoster
from fedrec.identity.identity import Identity

ROUND = 3


@pytest.mark.parametrize("step", ["keys", "shares", "vector"])
def test_a_member_is_removed(found, step):
    """The round is abandoned where it stands, and those who are left go on in the new epoch."""
    federation = found(plan_of("masks", 3, mask_step_seconds=60.0), 4)
    owners, gate = Authorities(federation), Gate(step, ROUND)
    clients = [federation.client(0, wrap=gate)]
    clients += [federation.client(number) for number in (1, 2)]
    removed = federation.client(3)
    try:
        until_others_are_done(federation, gate, step)
        owners.remove(Identity.load(federation.bench.state(3)).client_id[:20])
        made = owners.rotate()
        assert owners.link.status().epoch == made.roster.epoch == 2
        assert isinstance(removed.failure(), NotInRoster)
    finally:
        gate.opened.set()
    for client in clients:
        assert client.result().reason == "all rounds are published"
    counted = check_against_one_process(federation, [0, 1, 2])
    assert all(clients == {0, 1, 2} for clients in counted[ROUND - 1 :])
    (abandoned,) = [e for e in federation.journal() if e.kind == "round abandoned"]
    assert (abandoned.round, abandoned.fields["reason"]) == (ROUND, "the key epoch changed")
    assert [round_.epoch for round_ in federation.published()] == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("step", ["signature", "answer"])
def test_a_member_is_removed_once_survivors_are_told(found, step):
    """Its vector is in the sum already: without it the next sum would give its update away."""
    federation = found(plan_of("masks", 3, mask_step_seconds=60.0), 4)
    owners, gate = Authorities(federation), Gate(step, ROUND)
    clients = [federation.client(0, wrap=gate)]
    clients += [federation.client(number) for number in (1, 2)]
    removed = federation.client(3)
    try:
        until_others_are_done(federation, gate, step)
        owners.remove(Identity.load(federation.bench.state(3)).client_id[:20])
        made = owners.rotate()
        status = owners.link.status()
        assert (status.epoch, status.next_epoch) == (1, made.roster.epoch)
    finally:
        gate.opened.set()
    for client in clients:
        assert client.result().reason == "all rounds are published"
    assert isinstance(removed.failure(), NotInRoster)
    counted = check_against_one_process(federation, [0, 1, 2])
    assert [len(clients) for clients in counted[ROUND - 1 :]] == [4, 3, 3]
    assert "round abandoned" not in kinds_of(federation)
    assert [round_.epoch for round_ in federation.published()] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("step", ["keys", "shares", "signature", "answer"])
def test_a_member_is_added(found, step):
    """The round ends in its own epoch with everybody who is in it; the next one is of the new."""
    plan = plan_of("masks", 3, mask_step_seconds=60.0)
    federation = found(plan, 4, prepare=lambda bench: never_met(bench, 3))
    owners, gate = Authorities(federation), Gate(step, ROUND)
    later = Gate("keys", ROUND + 1)
    clients = [federation.client(0, wrap=lambda link: gate(later(link)))]
    clients += [federation.client(number) for number in (1, 2)]
    try:
        # One alone is summed with others at once as a guest only.
        joiner = federation.client(
            3, client__invitation=invite(federation.bench), client__when_away="go_on"
        )
        joiner.wait_for("waiting_to_join")
        assert gate.reached.wait(DEADLINE_SECONDS)
        assert owners.delivery.look()
        assert "member admitted" in owners.names()
        made = owners.folder.newest
        assert made is not None
        assert owners.link.status().next_epoch == made.roster.epoch
        gate.opened.set()
        assert joiner.wait_for("snapshot_taken").round == ROUND
    finally:
        gate.opened.set()
        later.opened.set()
    for client in (*clients, joiner):
        assert client.result().reason == "all rounds are published"
    counted = check_against_one_process(federation, [0, 1, 2, 3])
    assert counted[ROUND - 1] == {0, 1, 2}
    assert 3 in counted[-1]
    assert "round abandoned" not in kinds_of(federation)
    assert [round_.epoch for round_ in federation.published()] == [2, 2, 2, 3, 3]


def kinds_of(federation: Federation) -> list[str]:
    return [event.kind for event in federation.journal()]
