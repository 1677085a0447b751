"""Changes of an authority's folder, invitations among them.

A process that waits for the folder is held at a gate: a thread that finds it taken says so, and
continues when the test lets it.
"""

import errno
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from authority.folder.fake_coordinator import NOW, PASSPHRASE, PLAN, FakeCoordinator, ids, invited
from authority.members.test_guests import World, people
from world.clock import FakeClock
from world.federation import change, keep, rotate
from world.plans import plan_of

from fedrec import state_folder
from fedrec.durable import DiskFull
from fedrec.errors import FolderInUse, KeysError
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials, Issuer
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.settings.explain import settings_to_toml
from fedrec_authority.cli import roster, running
from fedrec_authority.delivery import AuthorityEvent, Delivery
from fedrec_authority.folder import backup, folder_changes
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore
from fedrec_authority.folder.folder_changes import FolderChanges, changing
from fedrec_authority.members.invitations import InvitationChanges

FAR_SECONDS = 60.0
KILLED = """
import sys
from pathlib import Path
from fedrec_authority.folder import folder_changes
from fedrec_authority.folder.authority_folder import AuthorityFolder

write = folder_changes.write_new_public

def stop(*values):
    write(*values)
    print("the roster is written, the bundle not yet", flush=True)
    sys.stdin.read()

folder_changes.write_new_public = stop
with folder_changes.changing(AuthorityFolder(Path(sys.argv[1]))) as keys:
    keys.rotate()
"""


class Gate:
    """Runs what has to wait for the folder, until `open`."""

    def __init__(self):
        self._is_open = threading.Event()
        self._waits = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def monotonic(self):
        """Stand in for the clock, which stands still."""
        return 0.0

    def sleep(self, seconds):
        """Stand in for waiting until another look at the lock."""
        if not self._is_open.is_set():
            self._waits.release()
            assert self._is_open.wait(FAR_SECONDS)

    def waiting(self, *actions):
        """Begin them side by side; return when each has found the folder taken."""

        def run(action):
            try:
                action()
            except BaseException as error:
                self._errors.append(error)

        begun = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
        self._threads += begun
        for thread in begun:
            thread.start()
        for _ in begun:
            assert self._waits.acquire(timeout=FAR_SECONDS), "it did not wait for the folder"

    def open(self):
        """Let all go on, and return when they are done."""
        self._is_open.set()
        for thread in self._threads:
            thread.join(FAR_SECONDS)
            assert not thread.is_alive()
        assert not self._errors


@pytest.fixture
def gate(monkeypatch):
    made = Gate()
    monkeypatch.setattr(state_folder, "time", made)
    yield made
    made.open()


def removal(folder, who):
    return lambda: roster.remove(who.client_id, into=folder.path)


def other_settings(folder, who):
    """Return a rotation for another run of the federation."""
    file = folder.path / "other.toml"
    file.write_bytes(settings_to_toml(plan_of(federation={"name": "films"}).model_dump()).encode())
    return lambda: roster.rotate(into=folder.path, settings_file=file)


@contextmanager
def no_space(monkeypatch, file="00000002.json"):
    """A file can't be stored, by default the next epoch's roster."""
    open_file = os.open

    def full(path, *values):
        if Path(path).name.startswith(f".{file}."):
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(path, *values)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        yield


def rosters(folder):
    """Return the roster of every epoch that was made, in their order."""
    files = sorted((folder.private / "rosters").iterdir())
    return [Roster.from_json(file.read_bytes()) for file in files]


def is_one_chain(folder, epochs):
    """Tell whether every epoch was made once, and each from the one before."""
    found = rosters(folder)
    followed = [one.previous for one in found[1:]]
    return [one.epoch for one in found] == list(range(1, epochs + 1)) and followed == [
        one.digest() for one in found[:-1]
    ]


def test_two_removals_at_once_both_hold(folder, people, gate):
    a, b, c, d = people
    with changing(folder) as keys:
        gate.waiting(removal(folder, a), removal(folder, b))
        # They read who is a member after this, though they were called before.
        keys.keep(keys.membership.with_member(d.public, NOW))
    gate.open()
    assert ids(folder.newest) == {c.client_id, d.client_id}
    assert is_one_chain(folder, 3)


def test_a_removal_beside_an_admission_is_not_lost(folder, people, gate, monkeypatch):
    a, b, c, d = people
    link, take = FakeCoordinator(), InvitationChanges.take
    link.waiting = [invited(folder, d, "d")]

    def taken(self, *values):
        # The delivery has read who is a member, and has not kept that d is one.
        gate.waiting(removal(folder, a))
        return take(self, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(InvitationChanges, "take", taken)
    Delivery(folder, link, lambda event: None, clock=FakeClock(NOW)).look()
    gate.open()
    assert [{who.client_id for who in one.members} for one in rosters(folder)[1:]] == [
        {one.client_id for one in (a, b, c, d)},
        {one.client_id for one in (b, c, d)},
    ]
    assert ids(folder.newest) == {one.client_id for one in (b, c, d)}


def test_two_epochs_at_once_have_two_numbers(folder, gate):
    with changing(folder):
        gate.waiting(*[lambda: roster.rotate(into=folder.path)] * 2)
    gate.open()
    assert is_one_chain(folder, 3)


@pytest.mark.slow
def test_two_processes_remove_two_members(folder, people):
    run = "from fedrec.cli.main import main; main()"
    command = [sys.executable, "-c", run, "keys", "roster", "remove"]
    begun = [
        subprocess.Popen([*command, who.client_id, "--into", folder.path]) for who in people[:2]
    ]
    assert [process.wait(FAR_SECONDS) for process in begun] == [0, 0]
    assert ids(folder.newest) == {people[2].client_id}
    assert is_one_chain(folder, 3)


@pytest.mark.slow
def test_who_is_killed_in_a_change_leaves_the_folder_free_and_whole(folder, people, tmp_path):
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", KILLED, folder.path]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and b"roster" in process.stdout.readline()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(folder_changes, "WAIT_SECONDS", 0.0)
            with pytest.raises(FolderInUse, match=f"in use by process {process.pid} on"):
                rotate(folder)
        process.kill()
    assert folder.newest is not None and folder.newest.roster.epoch == 1
    assert back_up(folder, tmp_path / "copy", PASSPHRASE) == 2
    keep(folder, folder.membership.without_member(people[0].client_id, NOW))
    assert rotate(folder).roster.epoch == 3
    assert is_one_chain(folder, 3)


@pytest.mark.parametrize("protection", ["none", "masks", "bfv"])
def test_a_second_authority_is_refused_before_it_looks(people, tmp_path, protection, capsys):
    plan = plan_of(
        federation={"name": "films"}, protection={"name": protection}, algorithm={"dim": 4}
    )
    folder = AuthorityFolder(tmp_path / "keys")
    keep(folder, folder.begin(plan, 12).of_exactly([who.public for who in people], 100))
    rotate(folder)
    change(folder, FolderChanges.make_operator)
    words = f"--into: the folder '{folder.path}' is in use by process {os.getpid()} on "
    with folder_changes.running(folder), pytest.raises(FolderInUse, match=re.escape(words)) as seen:
        # Nothing listens there; it does not come to that.
        running.run("127.0.0.1:9", into=folder.path)
    assert "Stop that process first" in seen.value.remedy
    assert capsys.readouterr().out == ""
    # Commands work beside it.
    with folder_changes.running(folder):
        roster.remove(people[3].client_id, into=folder.path)


def test_the_authority_waits_for_its_folder_and_says_so_once(folder, monkeypatch):
    monkeypatch.setattr(folder_changes, "WAIT_SECONDS", 0.0)
    events = list[AuthorityEvent]()
    delivery = Delivery(folder, FakeCoordinator(), events.append)
    with changing(folder):
        assert delivery.look() and delivery.look()
    assert [event.name for event in events] == ["coordinator found", "folder in use"]
    assert f"process {os.getpid()} on" in events[-1].detail
    assert delivery.look() and events[-1].name == "epoch began"


def test_nothing_is_told_while_the_folder_is_held(folder, people):
    link = FakeCoordinator()
    link.waiting = [invited(folder, people[3], "d")]
    names = []

    def tell(event):
        # Who listens is free to change the folder.
        rotate(folder)
        names.append(event.name)

    Delivery(folder, link, tell, clock=FakeClock(NOW)).look()
    assert names == ["coordinator found", "member admitted", "epoch delivered"]


def test_an_applicant_is_admitted_once_there_is_space_for_its_epoch(folder, people, monkeypatch):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    link.waiting = [invited(folder, people[3], "d")]
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    with no_space(monkeypatch):
        assert delivery.look()
    assert delivery.look()
    names = ["coordinator found", "member admitted", "disk full", "epoch delivered"]
    assert [event.name for event in events] == names
    assert ids(folder.newest) == {person.client_id for person in people}


@pytest.mark.parametrize("change_of", [removal, other_settings])
def test_a_change_without_its_epoch_is_no_change(folder, people, monkeypatch, change_of):
    before = folder.membership
    with no_space(monkeypatch), pytest.raises(DiskFull):
        change_of(folder, people[0])()
    assert folder.membership == before


@pytest.mark.parametrize("file", ["epoch.json", "membership.json", "d.crt", "00000002.json"])
def test_a_full_disk_uses_up_no_epochs(folder, people, monkeypatch, file):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    link.waiting = [invited(folder, people[3], "d")]
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    with no_space(monkeypatch, file):
        assert delivery.look() and delivery.look()
    assert "disk full" in [event.name for event in events]
    assert len(rosters(folder)) == 1 and not list(folder.path.rglob(".*.new"))
    assert delivery.look() and link.installed == [2]
    assert ids(folder.newest) == {person.client_id for person in people}


@pytest.mark.slow
def test_a_full_disk_takes_one_secret_key(folder, monkeypatch):
    opens = {"name": "bfv", "key_holder": "authority"}
    plan = PLAN.model_copy(update={"protection": PLAN.protection.model_validate(opens)})
    keep(folder, folder.begin(plan, 12))
    for _ in range(2):
        with no_space(monkeypatch, "epoch.json"), pytest.raises(DiskFull):
            rotate(folder)
    assert len(rosters(folder)) == 1 and folder.revealer.epochs == (2,)


def test_an_authority_killed_before_its_epoch_was_published_makes_the_next(
    folder, people, monkeypatch
):
    class Killed(BaseException):
        """Stands in for SIGKILL."""

    put = os.replace

    def kill(source, target):
        if target == folder.epoch_path:
            raise Killed
        put(source, target)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(os, "replace", kill)
        removal(folder, people[0])()
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    assert delivery.look() and delivery.look()
    names = ["coordinator found", "epoch delivered", "epoch began"]
    assert [event.name for event in events] == names and link.installed == [3]
    assert ids(folder.newest) == {person.client_id for person in people[1:3]}
    assert is_one_chain(folder, 3)


def test_who_was_removed_after_a_backup_is_not_admitted_again(
    folder, people, tmp_path, monkeypatch
):
    monkeypatch.setattr(backup, "COST", 2**10)
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    link.waiting = [invited(folder, people[3], "d")]
    back_up(folder, tmp_path / "copy", PASSPHRASE)
    Delivery(folder, link, lambda event: None, clock=FakeClock(NOW)).look()
    assert people[3].client_id in ids(folder.newest)
    # It is removed, and the authority is lost. The coordinator still has the application.
    other = AuthorityFolder(tmp_path / "other")
    restore(tmp_path / "copy", other, PASSPHRASE)
    rotate(other, number=4)
    Delivery(other, link, events.append, clock=FakeClock(NOW)).look()
    assert [event.name for event in events] == ["coordinator found", "applicant", "epoch delivered"]
    assert ids(other.newest) == {person.client_id for person in people[:3]}


def test_what_is_no_authority_is_left_as_it_is(tmp_path):
    with pytest.raises(KeysError, match="does not exist"), changing(AuthorityFolder(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_backup_is_restored_once(folder, tmp_path, gate):
    back_up(folder, tmp_path / "copy", PASSPHRASE)
    fresh = AuthorityFolder(tmp_path / "fresh")
    refused = []

    def late():
        try:
            restore(tmp_path / "copy", fresh, PASSPHRASE)
        except KeysError as error:
            refused.append(error.message)

    with changing(fresh, new=True) as keys:
        gate.waiting(late)
        keys.load_or_create()
        keys.keep(folder.membership)
    gate.open()
    assert refused == [f"{fresh.path} already holds an authority."]


@pytest.mark.slow
def test_who_is_invited_is_admitted_in_one_epoch(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    joiners = [Identity.create(f"joiner-{number}") for number in range(3)]
    link.waiting = [invited(folder, who, who.public.label) for who in joiners]
    delivery.look()
    assert {e.client_id for e in events if e.name == "member admitted"} == {
        who.client_id for who in joiners
    }
    assert link.installed == [2], "one epoch for all three, delivered at once"
    assert folder.newest is not None
    for who in joiners:
        assert folder.newest.roster.contains(who.client_id)
        assert (folder.certificates / f"{who.public.label}.crt").exists()
    delivery.look()
    assert link.installed == [2] and folder.applicants() == ()


@pytest.mark.slow
def test_an_admitted_newcomer_that_waits_for_others_is_told_of(tmp_path):
    world = World(tmp_path / "keys")
    world.join(*people(3))
    folder = world.folder
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    link.waiting = [invited(folder, Identity.create("late"), "late")]
    delivery.look()
    (seen,) = [event for event in events if event.name == "awaiting"]
    assert seen.label == "late" and seen.detail.startswith("in no sum yet: newcomers are summed")
    assert "2 more have to join. To invite one, run `fedrec provision --add NAME`" in seen.detail


@pytest.mark.slow
def test_an_invitation_admits_one(folder):
    """The coordinator relays what it likes: the authority remembers who used which invitation."""
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    path = change(folder, lambda keys: keys.invite("hospital-d", confirm=False, now=NOW))
    invitation = Credentials.load(path, "client.invitation")
    thieves = [Identity.create(f"thief {number}") for number in range(100)]
    link.waiting = [SignedApplication.make(who.public, invitation) for who in thieves]
    delivery.look()
    (admitted,) = [e for e in events if e.name == "member admitted"]
    refused = [e for e in events if e.name == "applicant refused"]
    assert len(refused) == 99 and all("already used" in e.detail for e in refused)
    assert all(admitted.client_id in e.detail for e in refused), "its owner is told by whom"
    assert len(folder.membership.present) == 4
    # Removed, it does not come back by what it was invited with.
    keep(folder, folder.membership.without_member(ClientId(admitted.client_id), NOW))
    rotate(folder)
    delivery.look()
    assert len(folder.membership.present) == 3
    assert folder.find_joiner(admitted.client_id)[0].client_id == admitted.client_id


@pytest.mark.slow
def test_invitations_run_out_and_are_the_authoritys_own(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    late = FakeClock(NOW + 15 * 86_400)
    delivery = Delivery(folder, link, events.append, clock=late)
    foreign = Issuer.create().credentials("invitation", "x")
    link.waiting = [
        invited(folder, Identity.create("late"), "late"),
        SignedApplication.make(Identity.create("foreign").public, foreign),
    ]
    delivery.look()
    seen = {e.label: e.detail for e in events if e.name == "applicant refused"}
    assert "This machine's clock reads" in seen["late"]
    assert "did not make that invitation" in seen["foreign"]
    assert len(folder.membership.present) == 3 and link.installed == []
    for name in ("../up", "", "a b"):
        with pytest.raises(KeysError):
            change(folder, lambda keys, name=name: keys.invite(name, confirm=False, now=NOW))


@pytest.mark.slow
def test_another_invitation_of_a_name_takes_the_place_of_an_unused_one(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    first = Credentials.load(
        change(folder, lambda keys: keys.invite("d", confirm=False, now=NOW)), "it"
    )
    second = Credentials.load(
        change(folder, lambda keys: keys.invite("d", confirm=False, now=NOW)), "it"
    )
    who, thief = Identity.create("d"), Identity.create("t")
    link.waiting = [
        SignedApplication.make(thief.public, first),
        SignedApplication.make(who.public, second),
    ]
    delivery.look()
    (refused,) = [e for e in events if e.name == "applicant refused"]
    assert refused.client_id == thief.client_id and "did not make that invitation" in refused.detail
    assert who.client_id in {member.client_id for member in folder.membership.present}
    with pytest.raises(KeysError, match="d has already applied"):
        change(folder, lambda keys: keys.invite("d", confirm=False, now=NOW))


@pytest.mark.slow
def test_applicants_are_told_once_and_wait_for_people_where_that_was_asked_for(folder):
    link, events = FakeCoordinator(), list[AuthorityEvent]()
    delivery = Delivery(folder, link, events.append, clock=FakeClock(NOW))
    joiner = Identity.create("d")
    link.waiting = [invited(folder, joiner, "d", confirm=True)]
    delivery.look()
    delivery.look()
    seen = [e for e in events if e.name == "applicant"]
    assert [e.client_id for e in seen] == [joiner.client_id]
    assert folder.find_joiner(joiner.client_id[:16]) == (joiner.public, b"")
    assert len(folder.membership.present) == 3
    with pytest.raises(KeysError):
        folder.find_joiner(folder.membership.present[0].client_id)
