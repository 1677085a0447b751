"""Each party a process: who stops cleanly says so, and who is killed is missed as before."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from e2e.commands import Command, commands, poll
from integration.test_members_go import Kits

from fedrec.identity.certificates import Credentials
from fedrec.wire.admin_link import AdminLink, MemberState, RunStatus

pytestmark = pytest.mark.slow

GUEST = "e"
STOPPED = 130


@contextmanager
def operator(kits: Kits) -> Iterator[AdminLink]:
    own = Credentials.load(kits.kits / "authority" / "operator.pem", "operator.pem")
    with closing(AdminLink(kits.address, own)) as link:
        yield link


def member(found: RunStatus, name: str) -> MemberState:
    return next(one for one in found.members if one.name == name)


def stop_in_a_round(link: AdminLink, name: str, client: Command) -> None:
    """Stop a client of which the round in progress has everything to expect yet."""
    client.process.send_signal(signal.SIGSTOP)
    poll(lambda: link.status().current and link.status().awaited == (name,), "a round waits")
    client.process.send_signal(signal.SIGTERM)
    client.process.send_signal(signal.SIGCONT)
    assert client.process.wait(60) == STOPPED, client.told


@pytest.mark.parametrize("protection", ["bfv", "masks"])
def test_a_guest_stops_and_a_core_member_stops(tmp_path, protection):
    """The deadline, ten minutes, is never waited for, nor what a step under masks may take."""
    slow = {"deadline_seconds": 600.0, "protection": protection}
    with commands() as start:
        kits = Kits(tmp_path, start, f'"{GUEST}"', **slow)
        with operator(kits) as link:
            last = kits.until(5)
            stop_in_a_round(link, GUEST, kits.running[GUEST])
            assert member(link.status(), GUEST).state == "stopped"
            began = time.monotonic()
            last = kits.until(4, after=last)
            waited = time.monotonic() - began
            assert waited < 60, waited
            kits.running[GUEST] = kits.client(GUEST, again="-back")
            last = kits.until(5, after=last)
            assert link.status().clients_here == 5

            kits.running["d"].process.send_signal(signal.SIGTERM)
            assert kits.running["d"].process.wait(60) == STOPPED
            told = member(link.status(), "d")
            assert told.state == "stopped" and told.last_counted >= last - 3
            shown = start(tmp_path / "clients.log", "clients", kits.address, *asked(kits))
            assert shown.ended() == 0, shown.told
            assert any(line.split()[:2] == ["d", "stopped"] for line in shown.out.splitlines())

            broken = kits.client("d", "--data", "nowhere.csv", again="-broken")
            assert broken.ended() != 0
            told = member(link.status(), "d")
            assert told.state in ("stopped", "cannot_start") and "[" in told.why, told
            kits.running["d"] = kits.client("d", again="-back")
            kits.until(5, after=link.status().published_round)
            found = link.status()
            assert found.clients_here == 5, found.members
        for name in "abcde":
            assert kits.running[name].process.poll() is None, kits.running[name].told
        assert list(kits.folder.rglob("audit.jsonl")) == [], "nothing had to be refused"


@pytest.mark.long
def test_who_is_killed_is_away_after_what_it_takes(tmp_path):
    with commands() as start:
        kits = Kits(tmp_path, start, f'"{GUEST}"', deadline_seconds=20.0)
        with operator(kits) as link:
            last = kits.until(5)
            kits.running[GUEST].kill()
            assert member(link.status(), GUEST).state in ("training", "waiting")
            poll(lambda: member(link.status(), GUEST).state == "away", "it is away")
            kits.until(4, after=last)


def asked(kits: Kits) -> tuple[str, str]:
    """Return how an operator's command is told who asks."""
    return "--operator", str(kits.kits / "authority" / "operator.pem")
