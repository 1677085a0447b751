"""The newest epoch is delivered, once, whoever fails meanwhile."""

from __future__ import annotations

import pytest
from authority.folder.fake_coordinator import FakeCoordinator
from world.federation import keep, rotate

from fedrec.durable import DiskFull
from fedrec.errors import ProtocolError, RefusedError, Unreachable
from fedrec_authority.delivery import AuthorityEvent, Delivery

pytestmark = pytest.mark.slow


def test_the_newest_epoch_is_delivered_once_and_after_a_loss_again(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    for _ in range(3):
        assert delivery.look()
    assert [e.name for e in events] == ["coordinator found", "epoch began"]
    rotate(folder)
    rotate(folder)
    link.busy = True
    delivery.look()
    delivery.look()
    assert link.installed == [3], "the newest only, and not again while it waits for its turn"
    link.busy, link.epoch, link.next_epoch = False, 3, 0
    delivery.look()
    assert [e.name for e in events[2:]] == ["epoch delivered", "epoch began"]
    link.failure = Unreachable("nobody")
    assert not delivery.look() and not delivery.look()
    link.failure, link.epoch = None, 1
    delivery.look()
    assert link.installed == [3, 3]
    assert [e.name for e in events[4:]][:2] == ["coordinator lost", "coordinator found"]


def test_a_full_disk_is_told_as_one_and_waited_for(folder, monkeypatch):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    delivery.look()
    with monkeypatch.context() as patched:
        full = DiskFull("membership.json cannot be written: No space left on device.")
        patched.setattr(link, "failure", full)
        assert delivery.look() and delivery.look(), "the coordinator is there"
    assert [e.name for e in events[2:]] == ["disk full"]
    assert "Free disk space" in events[2].detail and "Tried again" in events[2].detail
    rotate(folder)
    delivery.look()
    assert [e.name for e in events[3:]] == ["epoch delivered"]


def test_an_older_folder_delivers_nothing_and_says_what_to_do(folder):
    link, events = FakeCoordinator(epoch=6), list[AuthorityEvent]()
    Delivery(folder, link, events.append).look()
    assert link.installed == []
    assert [e.name for e in events] == ["coordinator found", "epoch missing"]
    assert "--epoch 7" in events[-1].detail


def test_refusals_are_told_and_end_it_where_it_is_no_operator(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append)
    rotate(folder)
    link.refusal = ProtocolError("It is not wanted.")
    delivery.look()
    delivery.look()
    assert [e.name for e in events if "epoch" in e.name] == ["epoch refused"]
    keep(folder, folder.membership.without_member(folder.membership.present[0].client_id, 9))
    delivery.look()
    assert events[-1].name == "members changed"
    link.failure = RefusedError("no")
    with pytest.raises(RefusedError):
        delivery.look()
